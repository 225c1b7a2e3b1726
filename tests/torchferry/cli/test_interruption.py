"""An interrupt ends a command, whatever the code does that it interrupts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from project import ROOT

# Run by ``run`` as a command is; ``Callback`` drops what is raised in it, as callbacks of libraries do.
COMMAND = """
import os, signal, sys, time
from torchferry.cli import app

class Callback:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)

def command(arguments, **options):
    callback = Callback()
    del callback
    print("went on", flush=True)
    {rest}

app.app = command
sys.exit(app.run([]))
"""


def run_command(rest: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-W", "ignore", "-c", COMMAND.format(rest=rest)]
    # A shell that starts the tests in its background has told its children to ignore an interrupt.
    return subprocess.run(
        line,
        cwd=ROOT,
        env=dict(os.environ),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


@pytest.mark.parametrize(
    "rest",
    ["pass", "time.sleep(100)", "while True: pass", "raise ValueError('of a library that lost its thread')"],
    ids=["ends", "waits", "computes", "fails"],
)
def test_an_interrupt_that_a_callback_drops(rest):
    done = run_command(rest)
    assert done.stdout == "went on\n"
    if "raise" in rest:
        # What went wrong afterwards is said.
        assert "ValueError" in done.stderr
        return
    assert done.returncode == 130
    assert "interrupted" in done.stderr

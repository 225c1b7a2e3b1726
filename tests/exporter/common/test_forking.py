"""Calls in forked processes beside what this process goes on with."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from exporter.common.errors import UsageError
from exporter.common.forking import ForkedCall, run_beside


def identify(value: int) -> tuple[int, int]:
    return os.getpid(), value


def test_a_call_runs_beside_or_here():
    with run_beside(identify, 3) as wait:
        pid, value = wait()
    assert (pid != os.getpid(), value) == (True, 3)
    with run_beside(identify, 4, is_beside=False) as wait:
        assert wait() == (os.getpid(), 4)


# torch's backend without a device starts a thread for autograd, as a GPU has it. The plain fork is the control.
WITH_A_DEVICE = """
import os
import time
import torch
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend
from exporter.common.forking import run_in_fork

_setup_privateuseone_for_python_backend()

def differentiate():
    x = torch.full((3,), 2.0, requires_grad=True)
    x.square().sum().backward()
    return x.grad.tolist()

def fork_again():
    return run_in_fork(differentiate)

before = run_in_fork(differentiate)
here = differentiate()
# Until the thread has begun: it may hold a lock of Python.
time.sleep(0.2)
pid = os.fork()
if pid == 0:
    try:
        differentiate()
    except RuntimeError as error:
        os._exit(7 if "fork" in str(error) else 8)
    os._exit(0)
plain = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
print(before, here, plain, run_in_fork(differentiate), run_in_fork(fork_again), differentiate())
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "_Fork"), reason="this C library has no _Fork")
def test_autograd_works_in_forks_where_it_has_threads_for_devices():
    done = subprocess.run(
        [sys.executable, "-c", WITH_A_DEVICE], capture_output=True, text=True, check=True, timeout=120
    )
    grad = [4.0, 4.0, 4.0]
    assert done.stdout.split("\n")[0] == f"{grad} {grad} 7 {grad} {grad} {grad}", done.stderr


# A thread that computes asks for Python's lock all the time, and is not there in the child.
BESIDE_A_BUSY_THREAD = """
import os, signal, sys, threading
from exporter.common import forking

def count():
    while True:
        sum(range(100))

forking._have_autograd_threads_been_seen = True
sys.setswitchinterval(1e-6)
threading.Thread(target=count, daemon=True).start()
for i in range(100):
    pid = forking.fork()
    if pid == 0:
        os._exit(sum(x for x in range(3)))
    signal.alarm(20)
    if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 3:
        sys.exit("a child ended otherwise")
print("100 children have run")
sys.stdout.flush()
os._exit(0)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "_Fork"), reason="this C library has no _Fork")
def test_a_child_does_not_wait_for_threads_that_it_does_not_have():
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", BESIDE_A_BUSY_THREAD]
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True) as process:
        try:
            stdout, stderr = process.communicate(timeout=90)
        finally:
            # A child that waits for ever does not end with its parent.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    assert stdout == "100 children have run\n", stderr


def refuse() -> None:
    raise UsageError("as asked")


def test_its_error_is_raised_by_the_wait():
    with pytest.raises(UsageError, match="as asked"), run_beside(refuse) as wait:
        wait()


def die_elsewhere(parent: int) -> int:
    if os.getpid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
    return 5


def test_what_was_killed_runs_here():
    with run_beside(die_elsewhere, os.getpid()) as wait:
        assert wait() == 5


def write_and_wait(descriptor: int) -> None:
    os.write(descriptor, str(os.getpid()).encode())
    signal.pause()


def test_a_call_that_nobody_waits_for_is_ended():
    reader, writer = os.pipe()
    with run_beside(write_and_wait, writer):
        pid = int(os.read(reader, 20))
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


class SlowPipe:
    """A pipe that is being closed for a while: a second close meanwhile would be of a number that is another file's."""

    def __init__(self, pipe: Any) -> None:
        self.pipe = pipe
        self.is_closing = threading.Lock()

    def close(self) -> None:
        assert self.is_closing.acquire(blocking=False)
        time.sleep(0.2)
        self.pipe.close()
        self.is_closing.release()


def test_two_threads_end_a_call(monkeypatch):
    call = ForkedCall(signal.pause)
    monkeypatch.setattr(call, "_pipe", SlowPipe(call._pipe))
    with ThreadPoolExecutor(2) as threads:
        for future in [threads.submit(call.end) for _ in range(2)]:
            future.result()

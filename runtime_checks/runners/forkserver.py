"""Fresh Python processes for archives, forked from one that has imported torch and nothing else.

Importing torch takes a second, which all runs within ``shared`` have in common.
"""

from __future__ import annotations

import contextlib
import contextvars
import importlib.util
import json
import multiprocessing.connection
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from exporter.errors import MissingRuntimeError
from runtime_checks.runners.process import environment, took_too_long

CHILD = Path(__file__).with_name("isolated_child.py")
# torch and what it imports for itself; numpy is left out, which torch does not need.
TORCH_AND_ITS_OWN = (
    "torch",
    "torchgen",
    "functorch",
    "typing_extensions",
    "sympy",
    "mpmath",
    "networkx",
    "jinja2",
    "markupsafe",
    "filelock",
    "fsspec",
    "nvidia",
    "triton",
    "cuda",
)


class ForkServer:
    """The process that forks. It is started with the first job, and again where it has ended."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._owner: tuple[int, dict[str, str]] = (0, {})

    def run(self, job: Mapping[str, object], seconds: float) -> tuple[int, str]:
        """The exit code of the job's process, negative for a signal, and what it said.

        Raises ``RunError`` after ``seconds``, ``MissingRuntimeError`` where Python cannot be started.
        """
        until = time.monotonic() + seconds
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps(job).encode() + b"\n")
        if not multiprocessing.connection.wait([process.stdout.fileno()], max(until - time.monotonic(), 0.0)):
            self.close()
            raise took_too_long(str(job["archive"]), seconds)
        code = process.stdout.readline()
        said = Path(str(job["said"]))
        if code:
            return int(code), said.read_text(errors="replace")
        # Not the job's process has ended, but the one that forks.
        self.close()
        return process.returncode or 1, said.read_text(errors="replace") if said.exists() else "torch is not imported"

    def _started(self) -> subprocess.Popen[bytes]:
        # In a process that was forked from here it belongs to another.
        owner = os.getpid(), environment()
        if self._process is not None and self._owner == owner and self._process.poll() is None:
            return self._process
        self.close()
        # Isolated mode: no PYTHON* variables, no user site; -S: no site-packages either.
        command = [sys.executable, "-I", "-S", str(CHILD), json.dumps(_packages())]
        pipe, null = subprocess.PIPE, subprocess.DEVNULL
        try:
            # With a group of its own, it ends with all that it has forked.
            process = subprocess.Popen(
                command, bufsize=0, stdin=pipe, stdout=pipe, stderr=null, env=owner[1], start_new_session=True
            )
        except OSError as error:
            raise MissingRuntimeError(f"{command[0]} cannot be started", got=str(error)) from None
        self._process, self._owner = process, owner
        return process

    def close(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()
        if self._owner[0] == os.getpid():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


_SHARED: contextvars.ContextVar[ForkServer | None] = contextvars.ContextVar("torchferry_forkserver", default=None)


@contextlib.contextmanager
def shared() -> Iterator[ForkServer]:
    """While this lasts, runs have one process that forks; inside another ``shared`` it is that one's."""
    outer = _SHARED.get()
    if outer is not None:
        yield outer
        return
    made = ForkServer()
    token = _SHARED.set(made)
    try:
        yield made
    finally:
        _SHARED.reset(token)
        made.close()


def _packages() -> dict[str, str]:
    """The folder of each package that may be imported, as this process finds it."""
    found = {}
    for name in TORCH_AND_ITS_OWN:
        spec = importlib.util.find_spec(name)
        if spec is None:
            continue
        places = list(spec.submodule_search_locations or [])
        place = Path(places[0]) if places else Path(spec.origin or "")
        found[name] = str(place.parent)
    return found

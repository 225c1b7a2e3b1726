"""Fresh Python processes for archives, forked from one that has imported torch and nothing else.

Importing torch takes a second, which all runs within ``shared`` have in common.
"""

from __future__ import annotations

import contextlib
import contextvars
import importlib.util
import inspect
import json
import multiprocessing.connection
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

from exporter.common.errors import MissingRuntimeError
from runtime_checks.runners.subprocesses import environment, took_too_long

CHILD = Path(__file__).with_name("children") / "torch_child.py"
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
    """The process that forks. It is started with the first job, and again where it has ended.

    ``said`` is an empty file for what it says itself; ``python`` an interpreter with another torch.
    """

    def __init__(self, said: IO[bytes], python: str = sys.executable) -> None:
        self._python = python
        self._process: subprocess.Popen[bytes] | None = None
        self._owner: tuple[int, dict[str, str]] = (0, {})
        self._said = said
        self._one_at_a_time = threading.Lock()

    def run(self, job: Mapping[str, object], seconds: float) -> tuple[int, str]:
        """The exit code of the job's process, negative for a signal, and what it said.

        Raises ``RunError`` after ``seconds``, ``MissingRuntimeError`` where Python cannot be started.
        """
        with self._one_at_a_time:
            try:
                return self._run(job, time.monotonic() + seconds)
            except TimeoutError:
                self.close()
                raise took_too_long(str(job["archive"]), seconds) from None
            except BaseException:
                # Its answer would be taken for that of the next job.
                self.close()
                raise

    def _run(self, job: Mapping[str, object], until: float) -> tuple[int, str]:
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps(job).encode() + b"\n")
        if not multiprocessing.connection.wait([process.stdout.fileno()], max(until - time.monotonic(), 0.0)):
            raise TimeoutError
        code = process.stdout.readline()
        said = Path(str(job["said"]))
        text = said.read_text(errors="replace") if said.exists() else ""
        if code:
            return int(code), text
        # Not the job's process has ended, but the one that forks.
        self.close()
        self._said.seek(0)
        return process.returncode or 1, text or self._said.read().decode(errors="replace")

    def _started(self) -> subprocess.Popen[bytes]:
        # In a process that was forked from here it belongs to another.
        owner = os.getpid(), environment()
        if self._process is not None and self._owner == owner and self._process.poll() is None:
            return self._process
        self.close()
        # Isolated mode: no PYTHON* variables, no user site; -S: no site-packages either.
        packages = _packages() if self._python == sys.executable else packages_of(self._python)
        command = [self._python, "-I", "-S", str(CHILD), json.dumps(packages)]
        pipe = subprocess.PIPE
        self._said.seek(0)
        self._said.truncate()
        try:
            # With a group of its own, it ends with all that it has forked.
            process = subprocess.Popen(
                command, bufsize=0, stdin=pipe, stdout=pipe, stderr=self._said, env=owner[1], start_new_session=True
            )
        except OSError as error:
            raise MissingRuntimeError(f"{command[0]} cannot be started", got=str(error)) from None
        self._process, self._owner = process, owner
        return process

    def close(self) -> None:
        """Ends the process; ``run`` starts another."""
        process, self._process = self._process, None
        if process is None:
            return
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()
        if self._owner[0] == os.getpid() and process.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


_SHARED: contextvars.ContextVar[ForkServer | None] = contextvars.ContextVar("torchferry_forkserver", default=None)


@contextlib.contextmanager
def shared(python: str = sys.executable) -> Iterator[ForkServer]:
    """While this lasts, runs have one process that forks; inside another ``shared`` it is that one's.

    ``python`` is the interpreter that archives run in, with the torch that it has.
    """
    outer = _SHARED.get()
    if outer is not None and python == sys.executable:
        yield outer
        return
    with tempfile.TemporaryFile(buffering=0) as said:
        made = ForkServer(said, python)
        token = _SHARED.set(made)
        try:
            yield made
        finally:
            _SHARED.reset(token)
            made.close()


def packages_of(python: str) -> dict[str, str]:
    """``_packages`` of another interpreter. Raises ``MissingRuntimeError`` where it does not run."""
    code = inspect.getsource(_packages)
    setup = f"import importlib.util, json\nfrom pathlib import Path\nTORCH_AND_ITS_OWN = {TORCH_AND_ITS_OWN!r}\n"
    command = [python, "-I", "-c", f"{setup}{code}\nprint(json.dumps(_packages()))"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment())
    except (OSError, subprocess.CalledProcessError) as error:
        raise MissingRuntimeError(f"{python} cannot be started", got=str(error)) from None
    return json.loads(done.stdout)


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

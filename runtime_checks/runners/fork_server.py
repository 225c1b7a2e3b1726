"""Fresh Python processes for archives, forked from one that has imported torch and nothing else.

Importing torch takes a second, which all runs within ``shared_fork_server`` share."""

from __future__ import annotations

import contextlib
import contextvars
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
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from exporter.common.errors import MissingRuntimeError
from exporter.common.fork_support import require_fork
from runtime_checks.runners.subprocesses import (
    CONFINEMENT_PACKAGE,
    build_environment,
    find_package_folder,
    find_package_folders,
    make_timeout_error,
)

CHILD = Path(__file__).with_name("children") / "torch_child.py"
# torch and the packages that it imports; numpy is left out, as torch does not need it.
TORCH_AND_ITS_OWN = (
    "torch", "torchgen", "functorch", "typing_extensions", "sympy", "mpmath", "networkx", "jinja2", "markupsafe",
    "filelock", "fsspec", "nvidia", "triton", "cuda",
)  # fmt: skip


class ForkServer:
    """The process that forks. It is started with the first job, and again if it has ended.

    ``log`` is an empty file for its own output; ``python`` an interpreter with another torch."""

    def __init__(self, log: IO[bytes], python: str = sys.executable) -> None:
        self._python = python
        self._process: subprocess.Popen[bytes] | None = None
        self._owner: tuple[int, dict[str, str]] = (0, {})
        self._log = log
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start the process now, so that it imports torch beside what the caller does before the first job."""
        with self._lock, contextlib.suppress(MissingRuntimeError):
            self._ensure_started()

    def take_over(self) -> None:
        """Use the parent's process here, in a process that the parent waits for."""
        self._owner = os.getpid(), self._owner[1]

    def run(self, job: Mapping[str, object], seconds: float) -> tuple[int, str]:
        """Run a job; return its process's exit code, negative for a signal, and its output.

        Raise ``RunError`` after ``seconds``, ``MissingRuntimeError`` if Python cannot be started."""
        with self._lock:
            try:
                return self._run(job, time.monotonic() + seconds)
            except TimeoutError:
                self.close()
                raise make_timeout_error(str(job["archive"]), seconds) from None
            except BaseException:
                # Its answer would be mistaken for that of the next job.
                self.close()
                raise

    def _run(self, job: Mapping[str, object], until: float) -> tuple[int, str]:
        process = self._ensure_started()
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps(job).encode() + b"\n")
        if not multiprocessing.connection.wait([process.stdout.fileno()], max(until - time.monotonic(), 0.0)):
            raise TimeoutError
        code = process.stdout.readline()
        log_file = Path(str(job["said"]))
        text = log_file.read_text(errors="replace") if log_file.exists() else ""
        if code:
            return int(code), text
        # The process that forks has ended, not the job's.
        self.close()
        self._log.seek(0)
        return process.returncode or 1, text or self._log.read().decode(errors="replace")

    def _ensure_started(self) -> subprocess.Popen[bytes]:
        require_fork()
        # In a process forked from this one the server belongs to the parent.
        owner = os.getpid(), build_environment()
        if self._process is not None and self._owner == owner and not self._has_ended(self._process):
            return self._process
        self.close()
        # Isolated mode: no PYTHON* variables, no user site; -S: no site-packages either.
        is_ours = self._python == sys.executable
        packages = find_package_folders(TORCH_AND_ITS_OWN) if is_ours else find_interpreter_packages(self._python)
        command = [self._python, "-I", "-S", str(CHILD), json.dumps(packages)]
        pipe = subprocess.PIPE
        self._log.seek(0)
        self._log.truncate()
        try:
            # A group of its own ends together with all that it has forked.
            process = subprocess.Popen(
                command, bufsize=0, stdin=pipe, stdout=pipe, stderr=self._log, env=owner[1], start_new_session=True
            )
        except OSError as error:
            raise MissingRuntimeError(f"{command[0]} cannot be started", got=str(error)) from None
        self._process, self._owner = process, owner
        return process

    @staticmethod
    def _has_ended(process: subprocess.Popen[bytes]) -> bool:
        """Return whether the process has ended, also where a parent of this one has started it.

        Without a job it prints nothing, and at its end its output is closed."""
        assert process.stdout is not None
        return bool(multiprocessing.connection.wait([process.stdout.fileno()], 0.0))

    def close(self) -> None:
        """End the process; ``run`` starts another."""
        process, self._process = self._process, None
        if process is None:
            return
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()
        if self._owner[0] == os.getpid():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


_SHARED: contextvars.ContextVar[ForkServer | None] = contextvars.ContextVar("torchferry_forkserver", default=None)


@contextlib.contextmanager
def shared_fork_server(python: str = sys.executable) -> Iterator[ForkServer]:
    """Share one fork server between all runs within; inside another ``shared_fork_server`` it is that one's.

    ``python`` is the interpreter that archives run in, with the torch that it has."""
    outer = _SHARED.get()
    if outer is not None and python == sys.executable:
        yield outer
        return
    with tempfile.TemporaryFile(buffering=0) as log:
        server = ForkServer(log, python)
        token = _SHARED.set(server)
        try:
            yield server
        finally:
            _SHARED.reset(token)
            server.close()


@contextlib.contextmanager
def start_runtime(runtimes: Sequence[str]) -> Iterator[None]:
    """Start the process that runs archives inside, if it is among these runtimes: it imports torch at the same time."""
    with shared_fork_server() as server:
        if "python" in runtimes:
            server.start()
        yield


def find_interpreter_packages(python: str) -> dict[str, str]:
    """Return ``find_package_folders`` of another interpreter. Raise ``MissingRuntimeError`` if it does not run."""
    code = inspect.getsource(find_package_folder)
    setup = "from __future__ import annotations\nimport importlib.util, json\nfrom pathlib import Path\n"
    listing = f"{{name: find_package_folder(name) for name in {TORCH_AND_ITS_OWN!r}}}"
    command = [python, "-I", "-c", f"{setup}{code}\nprint(json.dumps({listing}))"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=build_environment())
    except (OSError, subprocess.CalledProcessError) as error:
        raise MissingRuntimeError(f"{python} cannot be started", got=str(error)) from None
    # What confines the process is ours.
    folders = json.loads(done.stdout) | {CONFINEMENT_PACKAGE: find_package_folder(CONFINEMENT_PACKAGE)}
    return {name: folder for name, folder in folders.items() if folder}

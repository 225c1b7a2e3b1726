"""Shared parts of runners that start a process: its limits, its environment, its end."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from exporter.common.errors import MissingRuntimeError, RunError, UsageError

# The package that the confinement of a process needs.
CONFINEMENT_PACKAGE = "landlockpy"
# Seconds and GiB that a process may take if nobody says otherwise; the same in bytes.
TIME_LIMIT, MEMORY_LIMIT = 600.0, 16.0
MEMORY = MEMORY_LIMIT * 2**30
# Bytes that are free for temporary files, with less of which a process that ends early had too few.
LEAST_SPACE = 2**20
_KEPT_VARIABLES = ("PATH", "HOME", "LD_LIBRARY_PATH", "TMPDIR")


# What a clock and a limit of memory can be set to, with room to spare.
MOST_SECONDS, MOST_BYTES = 1e8, 2.0**60


def check_limits(seconds: float, memory: float) -> None:
    """Raise ``UsageError`` if a limit is not a positive number that a system knows."""
    if not (0 < seconds <= MOST_SECONDS and 0 < memory <= MOST_BYTES):
        what, got = "a limit is not a positive number", f"{seconds:g} s, {memory:g} bytes"
        expected = f"--time-limit in seconds, to {MOST_SECONDS:g}, and --memory-limit in GiB, to {MOST_BYTES / 2**30:g}"
        raise UsageError(what, got=got, expected=expected)


def find_package_folder(name: str) -> str:
    """Return the folder that a package lies in; an empty text if it is not installed."""
    spec = importlib.util.find_spec(name)
    if spec is None:
        return ""
    places = list(spec.submodule_search_locations or [])
    return str(Path(places[0] if places else spec.origin or "").parent)


def find_package_folders(names: Sequence[str]) -> dict[str, str]:
    """Return the folders of the packages that are installed, and of what confines the process that may import them."""
    folders = {name: find_package_folder(name) for name in (*names, CONFINEMENT_PACKAGE)}
    return {name: folder for name, folder in folders.items() if folder}


def build_environment() -> dict[str, str]:
    """Return the environment of a child: no PYTHON* variables, and nothing of the user's."""
    return {k: v for k, v in os.environ.items() if k in _KEPT_VARIABLES or k.startswith(("CUDA", "NVIDIA"))}


def run_process(command: Sequence[str], archive: str, seconds: float) -> subprocess.CompletedProcess[str]:
    """Run a command to its end. Raise ``RunError`` after ``seconds``, ``MissingRuntimeError`` if it does not start."""
    try:
        environment = build_environment()
        return subprocess.run([*command], capture_output=True, text=True, timeout=seconds, env=environment, check=False)
    except subprocess.TimeoutExpired:
        raise make_timeout_error(archive, seconds) from None
    except OSError as error:
        raise MissingRuntimeError(f"{command[0]} cannot be started", got=str(error)) from None


def make_timeout_error(archive: str, seconds: float) -> RunError:
    """Make the error of an archive that did not finish within its time limit."""
    what, got = "the archive did not finish in a fresh process", f"more than {seconds:g} s"
    return RunError(what, where=archive, got=got, mend="raise the limit with --time-limit")


def make_early_end_error(path: Path, code: int, log: str, seconds: float, memory: float) -> RunError:
    """Make the error of a process that ended early. ``code``: the exit code, negative for a signal."""
    last = (log.strip().splitlines() or [""])[-1]
    number = -code
    how = f"signal {number}, {signal.strsignal(number)}" if number > 0 else f"exit code {code}"
    mend = "raise --time-limit or --memory-limit if the limits are the reason"
    if number in (signal.SIGFPE, signal.SIGSEGV, signal.SIGABRT, signal.SIGILL):
        mend = "an operator of the file ends its process, and would end a host's: find the inputs that cause it"
    if number <= 0 and shutil.disk_usage(tempfile.gettempdir()).free < LEAST_SPACE:
        last, mend = last or "its folder of temporary files is full", "free the disk, or set TMPDIR to another one"
    what, got = "the process that ran the archive ended early", f"{how}{': ' + last if last else ''}"
    expected = f"a run within {seconds:g} s and {memory / 2**30:.1f} GiB"
    return RunError(what, where=str(path), got=got, expected=expected, mend=mend)

"""What runners that start a process share: its limits, its environment, its calls as a file, its end."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

import torch

from exporter.common.errors import MissingRuntimeError, OutputError, RunError, UsageError
from runtime_checks.runners.base import Call

_KEPT = ("PATH", "HOME", "LD_LIBRARY_PATH", "TMPDIR")


def check_limits(seconds: float, memory: float) -> None:
    """Raises ``UsageError`` for limits that are no limits."""
    if not (0 < seconds < float("inf") and 0 < memory < float("inf")):
        raise UsageError(
            "a limit is not a positive number",
            got=f"{seconds} s, {memory} bytes",
            expected="--time-limit in seconds and --memory-limit in GiB, both above 0",
        )


def write_calls(calls: Sequence[Call], path: Path) -> None:
    """Torch and plain values only, so that a process without torchferry, or without Python, reads them."""
    try:
        rows = [
            (
                c.method,
                [*c.inputs],
                c.default_dtype,
                c.moved,
                c.left_on_cpu,
                [*c.parameters],
                [*c.parameters.values()],
                [*c.seeds],
                [*c.by],
            )
            for c in calls
        ]
        torch.save(rows, path)
    except (OSError, RuntimeError) as error:
        raise OutputError(
            "the calls for a fresh process cannot be written",
            where=str(path.parent),
            got=str(error).splitlines()[0],
            mend="free the disk, or set TMPDIR to another one",
        ) from None


def environment() -> dict[str, str]:
    """No PYTHON* variables, and nothing of the user's."""
    return {k: v for k, v in os.environ.items() if k in _KEPT or k.startswith(("CUDA", "NVIDIA"))}


def start(command: Sequence[str], archive: str, seconds: float) -> subprocess.CompletedProcess[str]:
    """Run to its end."""
    try:
        return subprocess.run(
            [*command], capture_output=True, text=True, timeout=seconds, env=environment(), check=False
        )
    except subprocess.TimeoutExpired:
        raise took_too_long(archive, seconds) from None
    except OSError as error:
        raise MissingRuntimeError(f"{command[0]} cannot be started", got=str(error)) from None


def took_too_long(archive: str, seconds: float) -> RunError:
    return RunError(
        "the archive did not finish in a fresh process",
        where=archive,
        got=f"more than {seconds:g} s",
        mend="raise the limit with --time-limit",
    )


def ended_early(path: Path, code: int, said: str, seconds: float, memory: float) -> RunError:
    """``code``: the exit code, negative for a signal."""
    last = (said.strip().splitlines() or [""])[-1]
    number = -code
    how = f"signal {number}, {signal.strsignal(number)}" if number > 0 else f"exit code {code}"
    mend = "raise --time-limit or --memory-limit if the limits are the reason"
    if number in (signal.SIGFPE, signal.SIGSEGV, signal.SIGABRT, signal.SIGILL):
        mend = "an operator of the file ends its process, and would end a host's: find out at which inputs"
    return RunError(
        "the process that ran the archive ended early",
        where=str(path),
        got=f"{how}{': ' + last if last else ''}",
        expected=f"a run within {seconds:g} s and {memory / 2**30:.1f} GiB",
        mend=mend,
    )

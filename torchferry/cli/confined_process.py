"""Commands that let torch read or run a stranger's file do so in a confined process of their own.

It is forked from the command's, has its streams, prints its results and errors, and passes on an exit code alone."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exporter.common.errors import ArchiveError, TorchferryError
from exporter.common.forking import INTERRUPTS, end_with_parent, fork
from exporter.common.temporary_folders import temporary_folder
from runtime_checks.cache import cache_folder, make_private_folder
from runtime_checks.runners.children.confinement import confine, set_limits
from runtime_checks.runners.subprocesses import MEMORY_LIMIT, TIME_LIMIT, check_limits, make_early_end_error
from torchferry.cli.exit_codes import AlreadyReportedError, report_end
from torchferry.cli.interruption import end_soon_when_interrupted, leave_command
from torchferry.cli.output import err


@dataclass(frozen=True)
class Confinement:
    """What a process may do that reads ``path``: write the files ``outputs``, which may be None, within ``time_limit``
    seconds of computing and ``memory_limit`` GiB; start ``programs``, or with None compilers, whose results go to the
    cache; with ``has_devices`` use those of the system. ``as_json`` is how it reports its errors."""

    path: Path
    outputs: Sequence[Path | None] = ()
    time_limit: float = TIME_LIMIT
    memory_limit: float = MEMORY_LIMIT
    programs: Sequence[str] | None = ()
    has_devices: bool = False
    as_json: bool = False


def run_confined(work: Callable[[], Any], confinement: Confinement) -> None:
    """Run a command's work in a confined process, and return if its exit code is 0.

    Raises ``AlreadyReportedError`` with another exit code, ``ArchiveError`` if the process was ended by a signal."""
    seconds, memory = confinement.time_limit, confinement.memory_limit * 2**30
    check_limits(seconds, memory)
    outputs, temporary_files = _list_folders(confinement)

    def work_in_confinement(folder: str) -> int:
        _confine_this_process(confinement, folder, outputs, temporary_files)
        try:
            with end_soon_when_interrupted():
                work()
        except (MemoryError, RuntimeError) as error:
            # Torch has no exception of its own for it.
            if not isinstance(error, MemoryError) and "can't allocate memory" not in str(error):
                raise
            what, expected = "the file needs more memory than it may take", f"{memory / 2**30:g} GiB"
            where, mend = str(confinement.path), "raise --memory-limit"
            raise ArchiveError(what, where=where, expected=expected, mend=mend) from None
        return 0

    with temporary_folder() as folder:
        pid = fork()
        if pid == 0:
            _end_as_reported(lambda: work_in_confinement(str(folder)), as_json=confinement.as_json)
        code = _wait(pid)
    if code < 0:
        raise make_early_end_error(confinement.path, code, "", seconds, memory)
    if code:
        raise AlreadyReportedError(code)


def make_preparation(confinement: Confinement, folder: Path) -> Callable[[], None]:
    """Make what confines a process of a pool from its start: a function that can be sent there.

    ``folder`` is for the temporary files of all of them. Raises ``UsageError`` for limits that are none."""
    check_limits(confinement.time_limit, confinement.memory_limit * 2**30)
    return functools.partial(_confine_this_process, confinement, str(folder), *_list_folders(confinement))


def _list_folders(confinement: Confinement) -> tuple[list[str], str]:
    """List the folders that a process may write to, and name that of its temporary files, if it is none of its own."""
    outputs = [str(_find_folder(path)) for path in confinement.outputs if path is not None]
    temporary_files = ""
    if confinement.programs is None:
        # Where there is no cache, what needs one says so.
        with contextlib.suppress(TorchferryError):
            # Among its temporary files torch keeps what it compiles for all models.
            temporary_files = str(make_private_folder("temporary"))
            outputs.append(str(cache_folder()))
    return outputs, temporary_files


def _confine_this_process(confinement: Confinement, folder: str, outputs: Sequence[str], temporary_files: str) -> None:
    report = confine(folder, confinement.has_devices, confinement.programs, outputs)
    set_limits(confinement.memory_limit * 2**30, confinement.time_limit, confinement.has_devices)
    tempfile.tempdir = temporary_files or folder
    for text in report["missing"]:
        err.print(f"confinement: not in force: {text}", soft_wrap=True)


def import_early(name: str) -> None:
    """Import a package, if it is there, that writes files of its own when it is imported for the first time."""
    with contextlib.suppress(ImportError):
        importlib.import_module(name)


def _find_folder(path: Path) -> Path:
    """Return the folder that a file is written into, or the first around it that exists. A link's target is written."""
    with contextlib.suppress(OSError, RuntimeError):
        path = path.resolve()
    # A kernel is a folder itself.
    return next(folder for folder in (path, *path.absolute().parents) if folder.is_dir())


def _end_as_reported(work: Callable[[], int], *, as_json: bool) -> None:
    """End this process, which was forked for ``work``, with the exit code of what it reports."""
    code = 1
    try:
        end_with_parent()
        # The parent hears the same interrupt of a terminal, and passes it on as another signal.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, INTERRUPTS)
        code = report_end(work, as_json=as_json)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            for stream in filter(None, (sys.stdout, sys.stderr)):
                stream.flush()
        os._exit(code)


def _wait(pid: int) -> int:
    """Wait for a process, and pass interrupts on to it; return its exit code, negative for a signal.

    Raises ``KeyboardInterrupt`` if an interrupt has ended it before it could say so."""
    interrupts = list[int]()

    def pass_on(number: int, frame: object) -> None:
        interrupts.append(number)
        os.kill(pid, signal.SIGTERM)

    leave_command()
    handlers = {number: signal.signal(number, pass_on) for number in INTERRUPTS}
    try:
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if interrupts and code < 0:
        raise KeyboardInterrupt
    return code

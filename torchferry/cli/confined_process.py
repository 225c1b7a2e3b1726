"""Commands that let torch read or run a stranger's file do so in a confined process of their own.

It is forked from the command's, has its streams, prints its results and errors, and passes on an exit code alone."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any

from exporter.common.forking import INTERRUPTS, end_with_parent, fork
from exporter.common.temporary_folders import temporary_folder
from runtime_checks.runners.confined_calls import Confinement, make_preparation
from torchferry.cli.exit_codes import AlreadyReportedError, report_end
from torchferry.cli.interruption import end_soon_when_interrupted, leave_command
from torchferry.cli.output import err


def run_confined(work: Callable[[], Any], confinement: Confinement, *, as_json: bool = False) -> None:
    """Run a command's work in a confined process, and return if its exit code is 0.

    Its errors are reported there, ``as_json`` or not. Raises ``AlreadyReportedError`` with another exit code,
    ``RunError`` if the process was ended by a signal."""

    def work_in_confinement() -> int:
        prepare()
        with confinement.explain_memory(), end_soon_when_interrupted():
            work()
        return 0

    with temporary_folder() as folder:
        prepare = make_preparation(confinement, folder, report_missing)
        pid = fork()
        if pid == 0:
            _end_as_reported(work_in_confinement, as_json=as_json)
        code = _wait(pid)
    if code < 0:
        raise confinement.make_end_error(code)
    if code:
        raise AlreadyReportedError(code)


def report_missing(text: str) -> None:
    """Print what of a confinement is not in force."""
    err.print(text, soft_wrap=True)


def import_early(name: str) -> None:
    """Import a package, if it is there, that writes files of its own when it is imported for the first time."""
    with contextlib.suppress(ImportError):
        importlib.import_module(name)


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
    except SystemExit as end:
        # Nobody reads the output any more.
        code = end.code if isinstance(end.code, int) else 1
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

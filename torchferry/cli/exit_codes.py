"""The one place that turns what a command ends with into a message and an exit code."""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable

import typer

from exporter.common.errors import INTERRUPTED, TorchferryError, UsageError
from torchferry.cli.output import print_error

# typer ships its own click from some version on, and depends on the package before it.
ClickException = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")

# Names that no file has here, and files that others keep.
UNUSABLE = (errno.ENAMETOOLONG, errno.ELOOP, errno.EACCES)


class AlreadyReportedError(Exception):
    """What a command ended with was reported by another process, which ended with this exit code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def report_end(work: Callable[[], int], *, as_json: bool) -> int:
    """Run a command's work and return its exit code; print its error, also as JSON if ``as_json``.

    A bug of torchferry is raised, and so keeps its traceback."""
    try:
        code = work()
        # Newer typers turn the signal into this code themselves.
        return report_interrupt() if code == INTERRUPTED else code
    except AlreadyReportedError as end:
        return end.code
    except TorchferryError as error:
        print_error(error, as_json=as_json)
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return report_interrupt()
    except typer.Exit as end:
        return end.exit_code
    except OSError as error:
        if error.errno not in UNUSABLE:
            raise
        what, mend = "a file cannot be reached", "name another file"
        usage_error = UsageError(what, where=str(error.filename), got=error.strerror or "", mend=mend)
        print_error(usage_error, as_json=as_json)
        return usage_error.exit_code
    except Exception as error:
        if not isinstance(error, ClickException):
            raise
        error.show()  # pyright: ignore[reportAttributeAccessIssue]
        return UsageError.exit_code


def report_interrupt() -> int:
    """Say that the command was interrupted; return its exit code."""
    sys.stderr.write("interrupted: no half-written file was left behind\n")
    sys.stderr.flush()
    return INTERRUPTED

"""The console script: the commands, and the one place that turns errors into messages and exit codes."""

from __future__ import annotations

import atexit
import errno
import os
import sys
import threading

import typer
from typer import Option

from exporter import __version__
from exporter.common.errors import INTERRUPTED, TorchferryError, UsageError
from torchferry.cli import (
    bench,
    check,
    compat,
    convert,
    diff,
    export,
    graph,
    history,
    inspect,
    native,
    show,
    sign,
    sweep,
    umat,
    verify,
)
from torchferry.cli import run as run_history
from torchferry.cli.interruption import end_soon_when_interrupted, report_interrupt
from torchferry.cli.output import print_error

# typer ships its own click from some version on, and depends on the package before it.
ClickException = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")

# Names that no file has here, and files that others keep.
UNUSABLE = (errno.ENAMETOOLONG, errno.ELOOP, errno.EACCES)

app = typer.Typer(name="torchferry", no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode="rich")
app.command("export")(export.command)
app.command("show")(show.command)
app.command("check")(check.command)
app.command("inspect")(inspect.command)
app.command("graph")(graph.command)
app.command("diff")(diff.command)
app.command("verify")(verify.command)
app.command("convert")(convert.command)
app.command("umat")(umat.command)
app.command("keygen")(sign.keygen_command)
app.command("sign")(sign.command)
app.command("bench")(bench.command)
app.command("compat")(compat.command)
app.command("history")(history.command)
app.command("run")(run_history.command)
app.command("sweep")(sweep.command)
app.add_typer(native.app, name="native")
app.command("cmake-dir")(native.cmake_dir)


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"torchferry {__version__}")
        raise typer.Exit


@app.callback()
def _handle_options(
    version: bool = Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    """Carry PyTorch models into other people's solvers: one verified TorchScript file."""


def main() -> None:
    """Run the command line of this process and exit."""
    code = run(sys.argv[1:])
    is_watched = sys.getprofile() is not None or sys.gettrace() is not None
    if is_watched or any(not t.daemon for t in threading.enumerate() if t is not threading.main_thread()):
        sys.exit(code)
    atexit._run_exitfuncs()
    try:
        # A stream that was closed from the start is None.
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
    except OSError:
        # Nobody reads what is left: Python ends as it does then.
        sys.exit(code)
    # All that torch is made of takes a fifth of a second to take apart, for a process that ends.
    os._exit(code)


def run(arguments: list[str]) -> int:
    """Run the command line and return its exit code. A bug of torchferry keeps its traceback and gives 1."""
    try:
        with end_soon_when_interrupted():
            code = app(arguments, standalone_mode=False) or 0
        # Newer typers turn the signal into this code themselves.
        return report_interrupt() if code == INTERRUPTED else code
    except TorchferryError as error:
        print_error(error, as_json="--json" in arguments)
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return report_interrupt()
    except OSError as error:
        if error.errno not in UNUSABLE:
            raise
        what, mend = "a file cannot be reached", "name another file"
        usage_error = UsageError(what, where=str(error.filename), got=error.strerror or "", mend=mend)
        print_error(usage_error, as_json="--json" in arguments)
        return usage_error.exit_code
    except Exception as error:
        if not isinstance(error, ClickException):
            raise
        error.show()  # pyright: ignore[reportAttributeAccessIssue]
        return UsageError.exit_code

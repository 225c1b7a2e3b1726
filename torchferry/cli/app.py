"""The console script and its commands."""

from __future__ import annotations

import atexit
import os
import sys
import threading

import typer
from typer import Option

from exporter import __version__
from torchferry.cli import (
    adopt,
    bench,
    check,
    compat,
    convert,
    diff,
    evaluate,
    export,
    graph,
    history,
    inspect,
    native,
    show,
    sign,
    sweep,
    verify,
    wrap,
)
from torchferry.cli import run as run_history
from torchferry.cli.exit_codes import report_end
from torchferry.cli.interruption import end_soon_when_interrupted

app = typer.Typer(name="torchferry", no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode="rich")
app.command("export")(export.command)
app.command("adopt")(adopt.command)
app.command("show")(show.command)
app.command("check")(check.command)
app.command("inspect")(inspect.command)
app.command("graph")(graph.command)
app.command("diff")(diff.command)
app.command("verify")(verify.command)
app.command("convert")(convert.command)
app.add_typer(wrap.app, name="wrap")
app.command("umat")(wrap.umat)
app.command("keygen")(sign.keygen_command)
app.command("sign")(sign.command)
app.command("bench")(bench.command)
app.command("compat")(compat.command)
app.command("history")(history.command)
app.command("run")(run_history.command)
app.command("sweep")(sweep.command)
app.command("evaluate")(evaluate.command)
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

    def work() -> int:
        with end_soon_when_interrupted():
            return app(arguments, standalone_mode=False, obj=arguments) or 0

    return report_end(work, as_json="--json" in arguments)

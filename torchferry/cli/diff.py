"""``torchferry diff``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from torchferry.cli.options import JsonOption, MemoryLimitOption, TimeLimitOption
from torchferry.cli.output import print_difference, print_json


def command(
    one: Annotated[Path, Argument(help="An archive, or any TorchScript file.", metavar="A")],
    other: Annotated[Path, Argument(help="The file to compare it with.", metavar="B")],
    run: Annotated[
        bool, Option("--run", help="Run both on the stored cases of either, and compare the outputs.")
    ] = False,
    time_limit: TimeLimitOption = 600.0,
    memory_limit: MemoryLimitOption = 16.0,
    json: JsonOption = False,
) -> None:
    """Compare two files: contract, graphs, constants and, with --run, outputs. Ends with a verdict.

    The exit code is 0 for the same file, the same graph or the same numbers, and 5 where they differ.

    Examples:

      torchferry diff old.pt new.pt

      torchferry diff old.pt new.pt --run
    """
    import torchferry
    from runtime_checks.runners.confined_calls import Confinement
    from torchferry.cli.confined_process import run_confined

    def work() -> None:
        difference = torchferry.diff(one, other, run=run)
        if json:
            print_json(difference.as_dict())
        else:
            print_difference(difference)
        if not difference.same:
            raise typer.Exit(torchferry.MismatchError.exit_code)

    # The fresh processes that run the files are Python's.
    programs = (sys.executable,) if run else ()
    run_confined(work, Confinement(one, (), time_limit, memory_limit, programs), as_json=json)

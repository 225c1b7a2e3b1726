"""``torchferry diff``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from torchferry.cli.options import JsonOption
from torchferry.cli.output import print_difference, print_json


def command(
    one: Annotated[Path, Argument(help="An archive, or any TorchScript file.", metavar="A")],
    other: Annotated[Path, Argument(help="The file to compare it with.", metavar="B")],
    run: Annotated[
        bool, Option("--run", help="Run both on the stored cases of either, and compare the outputs.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Compare two files: contract, graphs, constants and, with --run, outputs. Ends with a verdict.

    The exit code is 0 for the same file, the same graph or the same numbers, and 5 where they differ.

    Examples:

      torchferry diff old.pt new.pt

      torchferry diff old.pt new.pt --run
    """
    import torchferry

    difference = torchferry.diff(one, other, run=run)
    if json:
        print_json(difference.as_dict())
    else:
        print_difference(difference)
    raise typer.Exit(0 if difference.same else torchferry.MismatchError.exit_code)

"""``torchferry show``."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from torchferry.cli.output import print_json, print_listing


def command(
    source: Annotated[
        str,
        typer.Argument(help="model.i, path/to/file.py:factory or package.module:factory", metavar="SOURCE"),
    ],
    model: Annotated[list[str] | None, typer.Option(help="Only this model; give it again for several.")] = None,
    inputs: Annotated[
        Path | None, typer.Option(help="Example inputs of a Python model by name: .pt, .npz or .json.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print it for machines.")] = False,
) -> None:
    """List the models of a source: name, inputs and outputs with shapes and types.

    Examples:

      torchferry show model.i

      torchferry show net.py:make_model --json
    """
    from torchferry import soundness_check

    listings = soundness_check.show(source, models=model or [], inputs=inputs)
    if json:
        print_json([dataclasses.asdict(listing) for listing in listings])
        return
    for listing in listings:
        print_listing(listing)

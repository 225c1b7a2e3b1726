"""``torchferry show``."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from exporter.cli.printing import print_json, print_listings


def command(
    source: Annotated[
        str,
        typer.Argument(help="model.i, path/to/file.py:factory or package.module:factory", metavar="SOURCE"),
    ],
    model: Annotated[list[str] | None, typer.Option(help="Only this model; give it again for several.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print it for machines.")] = False,
) -> None:
    """List the models of a source: name, inputs and outputs with shapes and types.

    Examples:

      torchferry show model.i

      torchferry show net.py:make_model --json
    """
    from exporter.sources.resolve import listings

    found = listings(source, model or [])
    if json:
        print_json([dataclasses.asdict(listing) for listing in found])
    else:
        print_listings(found)

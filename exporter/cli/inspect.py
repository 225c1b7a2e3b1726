"""``torchferry inspect``."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from exporter import archive
from exporter.cli.printing import print_archive, print_json


def command(
    path: Annotated[Path, typer.Argument(help="An archive.", metavar="ARCHIVE")],
    json: Annotated[bool, typer.Option("--json", help="Print it for machines.")] = False,
) -> None:
    """Print an archive's contract, methods, records and sizes, without running torch.

    Examples:

      torchferry inspect eq.pt

      torchferry inspect eq.pt --json
    """
    opened = archive.read(path)
    if json:
        print_json({"contract": dataclasses.asdict(opened.contract), "records": dict(opened.records)})
    else:
        print_archive(opened)

"""``torchferry compat``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from torchferry.cli.output import err, print_compatibility, print_json


def command(
    paths: Annotated[list[Path], typer.Argument(help="Archives.", metavar="ARCHIVE...")],
    torch: Annotated[str, typer.Option(help="Versions of torch: 2.12.0,2.13.0")],
    any_build: Annotated[
        bool, typer.Option("--any-build", help="Take a build for GPUs where there is none for CPUs: gigabytes.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print it for machines.")] = False,
) -> None:
    """Check archives under other versions of torch, each in an environment of its own, kept in the cache.

    Exit code 0: all verified under all versions. 5: one is not. 6: a version could not be got, and says why.

    Examples:

      torchferry compat artifacts/*.pt --torch 2.12.0,2.13.0
    """
    from runtime_checks.compatibility import compatibility

    versions = [text.strip() for text in torch.split(",") if text.strip()]
    found = compatibility(paths, versions, any_build=any_build, announce=err.print)
    if json:
        print_json(found.as_dict())
    else:
        print_compatibility(found)
    found.raise_if_failed()

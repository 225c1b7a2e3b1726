"""``torchferry compat``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from torchferry.cli.options import JsonOption
from torchferry.cli.output import err, print_compatibility, print_json


def command(
    paths: Annotated[list[Path], Argument(help="Archives.", metavar="ARCHIVE...")],
    torch: Annotated[str, Option(help="Versions of torch: 2.12.0,2.13.0")],
    any_build: Annotated[
        bool, Option("--any-build", help="Accept a GPU build if there is no CPU build: gigabytes.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Check archives under other versions of torch, each in an environment of its own, kept in the cache.

    Exit code 0: all verified under all versions. 5: one is not. 6: a version could not be installed, with the reason.

    Examples:

      torchferry compat artifacts/*.pt --torch 2.12.0,2.13.0
    """
    from runtime_checks.compatibility import run_compatibility_checks

    versions = [text.strip() for text in torch.split(",") if text.strip()]
    report = run_compatibility_checks(paths, versions, any_build=any_build, announce=err.print)
    if json:
        print_json(report.as_dict())
    else:
        print_compatibility(report)
    report.raise_if_failed()

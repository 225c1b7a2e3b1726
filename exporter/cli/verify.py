"""``torchferry verify``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from exporter.cli.printing import out, print_json


def command(
    path: Annotated[Path, typer.Argument(help="An archive.", metavar="ARCHIVE")],
    time_limit: Annotated[float, typer.Option(help="Seconds for the process that runs it.")] = 600.0,
    memory_limit: Annotated[float, typer.Option(help="GiB for the process that runs it.")] = 16.0,
    json: Annotated[bool, typer.Option("--json", help="Print the report for machines.")] = False,
) -> None:
    """Check an archive: its records, and its numbers in a fresh process without the source library.

    Exit code 0: every check that applies passed. 4: damaged. 5: numbers differ.

    Examples:

      torchferry verify eq.pt

      torchferry verify eq.pt --json --time-limit 60
    """
    from runtime_checks.report import render
    from runtime_checks.runners.isolated_python import IsolatedPython
    from runtime_checks.verify import examine

    report = examine(path, runner=IsolatedPython(time_limit, memory_limit * 2**30))
    if report.passed and json:
        print_json(report.as_dict())
    if not json:
        out.print(render(report))
    report.raise_if_failed()

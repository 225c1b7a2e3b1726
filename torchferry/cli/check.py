"""``torchferry check``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from torchferry.cli.output import out, print_findings, print_json


def command(
    source: Annotated[
        str,
        typer.Argument(help="model.i, path/to/file.py:factory or package.module:factory", metavar="SOURCE"),
    ],
    model: Annotated[
        list[str] | None, typer.Option(help="A model of the input file; give it again for several.")
    ] = None,
    inputs: Annotated[Path | None, typer.Option(help="Warmup inputs by variable name: .pt, .npz or .json.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of all random draws.")] = 0,
    allow: Annotated[list[str] | None, typer.Option(help="CHECK:REASON lets a finding pass.")] = None,
    second_opinion: Annotated[
        bool, typer.Option("--second-opinion", help="Also ask torch.export; its answer decides nothing.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the findings for machines.")] = False,
) -> None:
    """Run the soundness gate alone: would a capture of the model keep its meaning?

    Nothing is written. Exit code 3 if a finding is unsound.

    Examples:

      torchferry check net.py:make_model

      torchferry check model.i --model eq --json

      torchferry check net.py:make_model --allow 'data read:the branch is never taken in this solver'
    """
    import torchferry

    reports = torchferry.check(
        source, models=model or [], inputs=inputs, seed=seed, allow=allow or [], second_opinion=second_opinion
    )
    if json:
        print_json([c.as_dict() for c in reports])
        return
    for report in reports:
        print_findings(report.name, report.findings)
        out.print(f"{report.name}: sound, by {len(report.checks)} checks in {report.seconds:.1f} s")
        if report.not_run:
            out.print(f"{report.name}: not run, and not counted: {', '.join(report.not_run)}", style="yellow")

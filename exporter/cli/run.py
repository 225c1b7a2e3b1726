"""``torchferry run``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from exporter.cli.printing import err, out, print_json


def command(
    path: Annotated[Path, typer.Argument(help="An archive.", metavar="ARCHIVE")],
    history: Annotated[Path, typer.Option(help="Prescribed inputs, initial state, expected outputs: a .pt file.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Where the outputs of every step go: a .pt file.")
    ] = None,
    device: Annotated[str, typer.Option(help="On what: cpu, cuda, cuda:1.")] = "cpu",
    json: Annotated[bool, typer.Option("--json", help="Print the result for machines.")] = False,
) -> None:
    """Run a load history through an archive, its states fed back from step to step.

    Exit code 0: all steps ran, and agree with what the file expects. 5: a step differs.

    Examples:

      torchferry run return_map.pt --history cycle.pt -o stresses.pt
    """
    import torch
    from rich.progress import Progress

    from exporter.archive import replacing
    from runtime_checks import history as histories
    from runtime_checks.load import load

    model = load(path, device)
    given = histories.read(history, model.contract)
    with Progress(console=err, transient=True, disable=json) as progress:
        bar = progress.add_task("steps", total=given.steps)
        found = histories.run(model, given, lambda _: progress.advance(bar))
    if output is not None:
        with replacing(output) as beside:
            torch.save({name: value.cpu() for name, value in found.items()}, beside)
    lost = histories.failed(found)
    histories.hold(model.contract, given, found)
    if json:
        print_json({"steps": given.steps, "compared": list(given.expected), "not_finite_from_step": lost and lost[0]})
        return
    compared = f", equal to what is expected of {', '.join(given.expected)}" if given.expected else ""
    out.print(f"{given.steps} steps{compared}", soft_wrap=True)
    if lost:
        out.print(
            f"from step {lost[0]} on some elements have not converged: {lost[1]} values at the end", soft_wrap=True
        )

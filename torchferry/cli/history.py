"""``torchferry history``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from torchferry.cli.output import out


def command(
    source: Annotated[str, typer.Argument(help="model.i, a NEML2 input file with a driver", metavar="SOURCE")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The history: a .pt file.")],
    model: Annotated[str, typer.Option(help="The model that the driver drives; the only one if it is left out.")] = "",
    batch: Annotated[
        int, typer.Option(min=0, help="Elements, each with values of its own near the recorded ones; 0: as recorded.")
    ] = 0,
    seed: Annotated[int, typer.Option(help="Seed of how values vary.")] = 0,
) -> None:
    """Write the load history that a driver prescribes, with what eager mode gives at every step.

    An archive is held against it by ``torchferry run --history``, and in C++ by ``torchferry_verify --history``.

    Examples:

      torchferry history model.i --model model --batch 20 -o history.pt
    """
    import torch

    from exporter.common.atomic_files import replacing
    from exporter.frontends import resolve
    from exporter.model.eager.recorded_history import recorded

    name = resolve.chosen_models(source, [model] if model else [])[0]
    found = recorded(resolve.load(source, name, None), batch, seed)
    with replacing(output) as beside:
        torch.save(found.as_file(), beside)
    out.print(f"wrote {output}: {found.steps} steps of {', '.join(found.prescribed)}", soft_wrap=True)

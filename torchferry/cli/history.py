"""``torchferry history``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from exporter.common.errors import UsageError
from torchferry.cli.options import DriverOption, DtypeOption, LoadOption, OverridesArgument
from torchferry.cli.output import out


def command(
    source: Annotated[str, Argument(help="model.i, a NEML2 input file with a driver", metavar="SOURCE")],
    overrides: OverridesArgument = None,
    *,
    output: Annotated[Path, Option("--output", "-o", help="The history: a .pt file.")],
    model: Annotated[str, Option(help="The model that the driver drives. Default: the only one.")] = "",
    batch: Annotated[
        int, Option(min=0, help="Elements, each with values of its own near the recorded ones; 0: as recorded.")
    ] = 0,
    seed: Annotated[int, Option(help="Seed of the variation of values.")] = 0,
    load: LoadOption = None,
    driver: DriverOption = None,
    dtype: DtypeOption = "",
) -> None:
    """Write the load history that a driver prescribes, with eager mode's outputs at every step.

    ``torchferry run --history`` checks an archive against it, as does ``torchferry_verify --history`` in C++.

    Examples:

      torchferry history model.i --model model --batch 20 -o history.pt"""
    import torch

    from exporter.common.atomic_files import atomic_write_path
    from exporter.frontends import resolve
    from exporter.frontends.model_request import ModelRequest
    from exporter.model.eager.recorded_history import record_load_history

    request = ModelRequest(source, tuple(overrides or ()), tuple(load or ()), tuple(driver or ()), dtype)
    name, *others = resolve.choose_models(request, [model] if model else [])
    if others:
        got, expected = ", ".join([name, *others]), "one: --model NAME, or drivers of one model"
        raise UsageError("a history is that of one model", where=source, got=got, expected=expected)
    load_history = record_load_history(resolve.load(request, name, None), batch, seed)
    with atomic_write_path(output) as temporary_path:
        torch.save(load_history.to_file_tensors(), temporary_path)
    out.print(f"wrote {output}: {load_history.steps} steps of {', '.join(load_history.prescribed)}", soft_wrap=True)

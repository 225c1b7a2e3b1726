"""``torchferry show``."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, cast

from torchferry.cli.options import (
    BatchOption,
    InputsOption,
    JsonOption,
    LoadOption,
    ModelOption,
    OverridesArgument,
    SizesOption,
    SourceArgument,
)
from torchferry.cli.output import print_json, print_listing

if TYPE_CHECKING:
    from exporter.model.eager.batch_choice import BatchChoice, SizeChoice


def command(
    source: SourceArgument,
    overrides: OverridesArgument = None,
    model: ModelOption = None,
    load: LoadOption = None,
    inputs: InputsOption = None,
    batch: BatchOption = "auto",
    sizes: SizesOption = "auto",
    json: JsonOption = False,
) -> None:
    """List the models of a source: name, inputs and outputs with shapes and types.

    Examples:

      torchferry show model.i

      torchferry show net.py:make_model --json
    """
    from exporter.frontends.model_request import ModelRequest
    from exporter.model.eager.batch_choice import ShapeChoice
    from torchferry import soundness_check

    request = ModelRequest(source, tuple(overrides or ()), tuple(load or ()))
    shapes = ShapeChoice(cast("BatchChoice", batch), cast("SizeChoice", sizes))
    listings = soundness_check.show(request, models=model or [], inputs=inputs, shapes=shapes)
    if json:
        print_json([dataclasses.asdict(listing) for listing in listings])
        return
    for listing in listings:
        print_listing(listing)

"""``torchferry show``."""

from __future__ import annotations

import dataclasses

from torchferry.cli.options import InputsOption, JsonOption, LoadOption, ModelOption, OverridesArgument, SourceArgument
from torchferry.cli.output import print_json, print_listing


def command(
    source: SourceArgument,
    overrides: OverridesArgument = None,
    model: ModelOption = None,
    load: LoadOption = None,
    inputs: InputsOption = None,
    json: JsonOption = False,
) -> None:
    """List the models of a source: name, inputs and outputs with shapes and types.

    Examples:

      torchferry show model.i

      torchferry show net.py:make_model --json
    """
    from exporter.frontends.model_request import ModelRequest
    from torchferry import soundness_check

    request = ModelRequest(source, tuple(overrides or ()), tuple(load or ()))
    listings = soundness_check.show(request, models=model or [], inputs=inputs)
    if json:
        print_json([dataclasses.asdict(listing) for listing in listings])
        return
    for listing in listings:
        print_listing(listing)

"""``torchferry show``."""

from __future__ import annotations

import dataclasses

from torchferry.cli.options import InputsOption, JsonOption, ModelOption, SourceArgument
from torchferry.cli.output import print_json, print_listing


def command(
    source: SourceArgument, model: ModelOption = None, inputs: InputsOption = None, json: JsonOption = False
) -> None:
    """List the models of a source: name, inputs and outputs with shapes and types.

    Examples:

      torchferry show model.i

      torchferry show net.py:make_model --json
    """
    from torchferry import soundness_check

    listings = soundness_check.show(source, models=model or [], inputs=inputs)
    if json:
        print_json([dataclasses.asdict(listing) for listing in listings])
        return
    for listing in listings:
        print_listing(listing)

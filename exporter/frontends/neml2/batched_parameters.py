"""Parameters that have a batch in the input file: each element of a batch has its own value of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from exporter.archive.input_files import InputValues, to_tensor
from exporter.common.errors import UsageError
from exporter.common.torch_hooks import swap_parameters
from exporter.frontends.neml2.batch_layout import Layout, find_batches, get_dynamic_batch, infer_layout
from exporter.frontends.neml2.driver_recording import Call


def infer_element_layout(
    model: Any, calls: Sequence[Call], own_values: InputValues, settings: Any, wrap: Any
) -> tuple[Layout, dict[str, torch.Tensor]] | None:
    """Return the layout in which parameters with a batch have a value for each row, and these values by name.

    They are those of the first row in ``model`` then. ``own_values`` are others than the file's. Return None if there
    are none, or if the model is not independent by element so. Raises ``UsageError`` for values that do not fit."""
    batches = find_batches(model)
    if not batches or not calls:
        return None
    parameters = {name: p.detach() for name, p in model.named_parameters() if name in batches}
    events = {name: p.shape[len(batches[name]) :] for name, p in parameters.items()}
    for name, value in own_values.items():
        parameters[name] = to_tensor(name, value, "float64")
        batches[name] = tuple(parameters[name].shape[: max(0, parameters[name].ndim - len(events[name]))])
        if parameters[name].shape != (*batches[name], *events[name]):
            what, expected = f"the values of parameter {name!r} do not fit", f"[*batch, {list(events[name])}]"
            raise UsageError(what, where="--inputs", got=str(list(parameters[name].shape)), expected=expected)
    try:
        batch = torch.broadcast_shapes(*batches.values(), *(get_dynamic_batch(v) for call in calls for v in call))
    except RuntimeError:
        got = ", ".join(f"{name!r}: {list(shape)}" for name, shape in batches.items())
        got += "; inputs: " + ", ".join(str(list(get_dynamic_batch(v))) for v in calls[0])
        what, mend = "a parameter of the file has another batch than the inputs", "give its values in --inputs, too"
        raise UsageError(what, where="--inputs", got=got, expected="batches that broadcast", mend=mend) from None
    rows = {n: p.expand(*batch, *events[n]).reshape(-1, *events[n]).clone() for n, p in parameters.items()}
    with swap_parameters(model, {name: values[0] for name, values in rows.items()}):
        layout = infer_layout(model, [_expand_call(call, batch) for call in calls], settings, wrap)
    if not layout.batch_ndim or layout.findings:
        return None
    for name, parameter in model.named_parameters():
        if name in rows:
            parameter.data = rows[name][0].clone()
    return layout, rows


def _expand_call(call: Call, batch: torch.Size) -> Call:
    """Return a call in which the first input has the whole batch; the others follow it."""
    first, *others = call
    event_shape = first.data.shape[len(get_dynamic_batch(first)) :]
    expanded = first.data.expand(*batch, *event_shape)
    return (type(first)(expanded, sub_batch_ndim=first.sub_batch_ndim), *others)

"""A model that takes gradients itself: its forward pass, the backward pass and hooks as one graph."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from exporter.capture import fx_tracing
from exporter.capture.origin_tracking import line_of
from exporter.model.eager.evaluation import flatten, gradients_kept
from exporter.model.source import Inputs, Source


def followed(source: Source, inputs: Inputs, constant: Sequence[bool] = ()) -> fx_tracing.Program:
    """All outputs. ``constant`` marks those without a batch, which are given it. Call it under
    ``inference_conditions``; raises ``CaptureError``."""

    def run(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        outputs = flatten(source.module(*tensors), source).values()
        rows = tensors[0].shape[0] if any(constant) else 0
        whole = constant or (False,) * len(outputs)
        values = (v.expand((rows, *v.shape)) if fixed else v for v, fixed in zip(outputs, whole, strict=True))
        return tuple(v.detach() for v in values)

    # The engine leaves tensors without data in .grad.
    with gradients_kept(source):
        return fx_tracing.captured(run, inputs, named=source.named)


def constants_of(source: Source, program: fx_tracing.Program) -> list[tuple[str, str, torch.Tensor]]:
    """Tensors that the function made or found, but for the model's own: no submodule, the line that uses it, value."""
    own = {t.data_ptr() for t in (*source.named.parameters(), *source.named.buffers())}
    found = []
    for node in program.graph.graph.nodes:
        if node.op == "get_attr" and program.constants[str(node.target)].data_ptr() not in own:
            where = next((line for user in node.users if (line := line_of(user))), "")
            found.append(("", where, program.constants[str(node.target)]))
    return found

"""A model that takes gradients itself: its forward pass, the backward pass and hooks as one graph."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from exporter.capture import fx
from exporter.eager import flatten, gradients_kept
from exporter.sources.source import Inputs, Source


def followed(source: Source, inputs: Inputs, constant: Sequence[bool] = ()) -> fx.Program:
    """All outputs. ``constant`` marks those without a batch, which are given it. Call it under
    ``inference_conditions``; raises ``CaptureError``."""

    def run(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        outputs = flatten(source.module(*tensors), source).values()
        rows = tensors[0].shape[0] if any(constant) else 0
        whole = constant or (False,) * len(outputs)
        values = (v.expand((rows, *v.shape)) if fixed else v for v, fixed in zip(outputs, whole, strict=True))
        return tuple(v.detach() for v in values)

    # A first call finds no gradients; the engine leaves tensors without data there.
    with gradients_kept(source):
        for parameter in source.named.parameters():
            parameter.grad = None
        return fx.captured(run, inputs, named=source.named)

"""A rehearsal of the gate's tools on a small model of ours.

torch and Python prepare much at a first use, as the table of operators. Without a rehearsal every forked process would
prepare it anew."""

from __future__ import annotations

import functools

import torch
from torch import nn

from exporter.archive.contract import Origin
from exporter.archive.tensor_spec import TensorSpec
from exporter.model.eager.evaluation import eager_context, evaluate
from exporter.model.source import Source
from exporter.soundness.execution_paths import trace_path
from exporter.soundness.footprint import Footprint
from exporter.soundness.run_recording import canonicalize, record_run


@functools.cache
def rehearse() -> None:
    """Record a run, trace its path and take its footprint, once in this process; nothing of it remains."""
    origin = Origin(kind="python", library="", version="", model="rehearsal", sha256="")
    source = Source("rehearsal", _compute, nn.Identity(), (TensorSpec("x", (3,), "float64"),), origin)
    inputs = (torch.ones(2, 3, dtype=torch.float64),)
    with eager_context(source):
        canonicalize(record_run(source, inputs))
        trace_path(lambda: evaluate(source, inputs))
        with Footprint():
            evaluate(source, inputs)


def _compute(x: torch.Tensor) -> torch.Tensor:
    # Sizes and values are read, too.
    scale = 2.0 if bool(x.sum() > 0) else 1.0
    return scale * torch.exp(x).reshape(len(x), 3)

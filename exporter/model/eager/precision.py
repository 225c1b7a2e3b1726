"""A model in another precision than its library gives it, and what that changes."""

from __future__ import annotations

import dataclasses

import torch

from exporter.archive.contract import Finding
from exporter.archive.tensor_spec import FLOATING, TensorSpec, name_dtype
from exporter.common.errors import WarmupError
from exporter.common.forking import ForkFailedError, run_in_fork
from exporter.model.eager.evaluation import eager_context, evaluate_on_copies
from exporter.model.eager.warmup import run_first
from exporter.model.implicit.newton_solver import find_solvers
from exporter.model.source import Inputs, Source


def change_precision(source: Source, dtype: torch.dtype) -> Source:
    """Return the source with parameters, buffers and floating variables of this dtype.

    Its module is changed, and a finding says how far outputs are off from what they were. Settings of solvers stay as
    they are. Raises ``WarmupError`` if the model fails in this precision."""
    name = name_dtype(dtype)
    try:
        losses = run_in_fork(_measure_losses, source, dtype)
    except ForkFailedError as error:
        what, mend = f"the model does not run in {name}", "export it in its own precision: leave out --dtype"
        raise WarmupError(what, check="precision", got=str(error), expected="calls that end", mend=mend) from None
    worst = max(losses, key=losses.__getitem__, default="")
    reason = f"of the largest values, outputs are off by {losses[worst]:.1e} at most ({worst})" if worst else ""
    finding = Finding("precision", f"the model computes in {name}", reason=reason)
    return dataclasses.replace(_convert(source, dtype), findings=(*source.findings, finding))


def _convert(source: Source, dtype: torch.dtype) -> Source:
    settings = [
        (p, p.detach().clone()) for loop in find_solvers(source.parameter_module).values() for p in loop.parameters()
    ]
    source.parameter_module.to(dtype)
    for parameter, value in settings:
        parameter.data = value

    def convert_spec(spec: TensorSpec) -> TensorSpec:
        is_floating = spec.dtype in FLOATING
        return dataclasses.replace(spec, dtype=name_dtype(dtype)) if is_floating else spec

    return dataclasses.replace(
        source,
        inputs=tuple(map(convert_spec, source.inputs)),
        outputs=tuple(map(convert_spec, source.outputs)),
        calls=tuple(_convert_inputs(call, dtype) for call in source.calls),
        default_dtype=dtype,
    )


def _convert_inputs(inputs: Inputs, dtype: torch.dtype) -> Inputs:
    return tuple(t.to(dtype) if t.is_floating_point() else t for t in inputs)


def _measure_losses(source: Source, dtype: torch.dtype) -> dict[str, float]:
    """Return by output how far it is off in this precision, of its largest value, on the first inputs."""
    inputs = run_first(source, 0).inputs
    with eager_context(source):
        expected = evaluate_on_copies(source, inputs)
    converted = _convert(source, dtype)
    with eager_context(converted):
        actual = evaluate_on_copies(converted, _convert_inputs(inputs, dtype))
    losses = {}
    for name, value in expected.items():
        if value.is_floating_point() and value.numel():
            scale = float(value.abs().max()) or 1.0
            losses[name] = float((actual[name].to(value.dtype) - value).abs().max()) / scale
    return losses

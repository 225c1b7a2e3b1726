"""A second time step after a first step from rest. If every history variable is zero in the recorded call, as in a
user's example of a first step, no case would show how an implicit model uses a history."""

from __future__ import annotations

import dataclasses

import torch

from exporter.archive.load_history import NamedTensors, parse_lag
from exporter.archive.tensor_spec import FLOATING
from exporter.model.eager.evaluation import evaluate_on_copies
from exporter.model.implicit.implicit_update import collect_newton_info
from exporter.model.implicit.newton_solver import CONVERGED, find_solvers
from exporter.model.source import Inputs, Source


def append_second_step(source: Source) -> Source:
    """Add a second recorded call to a source with one call, a batch, Newton solvers, and a history of zeros.

    States are the outputs of the first step; prescribed variables go on at their rate: ``x + (x - x~1)``. If some of
    them have no ``x~1`` there is no rate, and no second call: a step in which nothing moves may be at a kink, as
    yielding is. Elements that do not converge in this step, or are not finite, are left out, and no call is added if
    the model raises an error. Call it under ``eager_context``."""
    if len(source.calls) != 1 or source.batch_ndim != 1 or not find_solvers(source.parameter_module):
        return source
    inputs = dict(zip((s.name for s in source.inputs), source.calls[0], strict=True))
    lagged_names = [s.name for s in source.inputs if parse_lag(s.name)[0] != s.name and s.dtype in FLOATING]
    try:
        outputs = evaluate_on_copies(source, source.calls[0])
        state_names = [n for n in lagged_names if parse_lag(n)[0] in outputs]
        prescribed = [s.name for s in source.inputs if s.name not in (*lagged_names, *outputs) and s.dtype in FLOATING]
        is_at_rest = not any(bool(inputs[n].any()) for n in state_names)
        if not state_names or not is_at_rest or any(f"{n}~1" not in inputs for n in prescribed):
            return source
        next_inputs = tuple(_advance_variable(name, inputs, outputs) for name in inputs)
        converged = _find_converged(source, next_inputs)
    except Exception:
        # Any error of the model is reported for the given inputs instead.
        return source
    if not bool(converged.any()):
        return source
    return dataclasses.replace(source, calls=(*source.calls, tuple(t[converged] for t in next_inputs)))


def _advance_variable(name: str, inputs: NamedTensors, outputs: NamedTensors) -> torch.Tensor:
    base, lag = parse_lag(name)
    now, before = inputs[name], inputs.get(f"{name}~1")
    if base != name:
        earlier = base if lag == 1 else f"{base}~{lag - 1}"
        value = outputs.get(earlier, inputs.get(earlier, now))
    elif name in outputs:
        value = outputs[name]
    else:
        value = now + (now - before) if before is not None and now.is_floating_point() else now
    return value.to(now.dtype).expand_as(now).clone()


def _find_converged(source: Source, inputs: Inputs) -> torch.Tensor:
    """Return which elements of the batch have converged with finite numbers."""
    count = inputs[0].shape[0]
    status = collect_newton_info(source, *(t.clone() for t in inputs))[2].reshape(count, -1)
    converged = (status == CONVERGED).all(1)
    for value in (*inputs, *evaluate_on_copies(source, inputs).values()):
        if value.is_floating_point() and value.shape[:1] == (count,):
            converged &= torch.isfinite(value).reshape(count, -1).all(1)
    return converged

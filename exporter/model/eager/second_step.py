"""The step after one from rest. Where every history variable is zero in what was recorded, as it is in a user's example
of a first step, no case would show what an implicit model makes of a history."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch

from exporter.archive.load_history import lag_of
from exporter.archive.tensor_spec import FLOATING
from exporter.model.eager.evaluation import evaluate
from exporter.model.implicit.implicit_update import newton_info
from exporter.model.implicit.newton_solver import CONVERGED, loops
from exporter.model.source import Inputs, Source


def continued(source: Source) -> Source:
    """The source with a second recorded call, if it has one, a batch, Newton loops, and a history of zeros.

    States are what the first step gave; what is prescribed goes on at its rate: ``x + (x - x~1)``. Where some of it has
    no ``x~1`` there is no rate, and no second call: a step in which nothing moves may stand at a kink, as yielding is.
    Elements that do not converge in this step, or are not finite, have none, and none has one where the model raises an
    error. Call it under ``inference_conditions``.
    """
    if len(source.calls) != 1 or source.batch_ndim != 1 or not loops(source.named):
        return source
    given = dict(zip((s.name for s in source.inputs), source.calls[0], strict=True))
    old = [s.name for s in source.inputs if lag_of(s.name)[0] != s.name and s.dtype in FLOATING]
    try:
        outputs = _outputs(source, source.calls[0])
        fed = [n for n in old if lag_of(n)[0] in outputs]
        prescribed = [s.name for s in source.inputs if s.name not in (*old, *outputs) and s.dtype in FLOATING]
        if not fed or any(bool(given[n].any()) for n in fed) or any(f"{n}~1" not in given for n in prescribed):
            return source
        following = tuple(_next(name, given, outputs) for name in given)
        good = _solved(source, following)
    except Exception:
        # Whatever it is that a model raises: it is said of the inputs that were given.
        return source
    if not bool(good.any()):
        return source
    return dataclasses.replace(source, calls=(*source.calls, tuple(t[good] for t in following)))


def _next(name: str, given: Mapping[str, torch.Tensor], outputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
    base, lag = lag_of(name)
    now, before = given[name], given.get(f"{name}~1")
    if base != name:
        earlier = base if lag == 1 else f"{base}~{lag - 1}"
        following = outputs.get(earlier, given.get(earlier, now))
    elif name in outputs:
        following = outputs[name]
    else:
        following = now + (now - before) if before is not None and now.is_floating_point() else now
    return following.to(now.dtype).expand_as(now).clone()


def _outputs(source: Source, inputs: Inputs) -> dict[str, torch.Tensor]:
    found = evaluate(source, tuple(t.clone() for t in inputs))
    return {name: value.detach().clone() for name, value in found.items()}


def _solved(source: Source, inputs: Inputs) -> torch.Tensor:
    """Which elements of the batch have converged, with numbers that are finite."""
    count = inputs[0].shape[0]
    status = newton_info(source, *(t.clone() for t in inputs))[2].reshape(count, -1)
    good = (status == CONVERGED).all(1)
    for value in (*inputs, *_outputs(source, inputs).values()):
        if value.is_floating_point() and value.shape[:1] == (count,):
            good &= torch.isfinite(value).reshape(count, -1).all(1)
    return good

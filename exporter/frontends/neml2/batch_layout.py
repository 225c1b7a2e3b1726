"""Which dimensions of a NEML2 variable are the batch, and which belong to the variable.

NEML2's tensors are ``(*dynamic batch, *sub-batch, *base)``. Sub-batch and base belong to the variable. So do
trailing dynamic dimensions over which the model is not independent: it sums over them, or has parameters with a
batch of their own. They are found by trying: the fewest such dimensions with which the elements of a leading batch
are independent. Where none work, the shapes are whole and fixed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from exporter.archive.contract import Finding
from exporter.archive.tensor_spec import Sampling, TensorSpec
from exporter.frontends.neml2.driver_recording import Call
from exporter.model.source import Inputs

Shape = tuple[int, ...]
# Samples for variables of which nothing is recorded. Modified Rodrigues parameters of a rotation below half a turn
# have a length below 1 (neml2/types/mrp.py).
BY_TYPE = {"MRP": Sampling("uniform", -0.4, 0.4), "Quaternion": Sampling("uniform", 0.1, 1.0)}
Wrap = Callable[[nn.Module, Mapping[str, int]], nn.Module]


@dataclass(frozen=True)
class Layout:
    inputs: tuple[TensorSpec, ...]
    sub_batch: dict[str, int]
    batch_ndim: int
    calls: tuple[Inputs, ...]
    findings: tuple[Finding, ...] = ()


def find(model: Any, calls: Sequence[Call], settings: Any, wrap: Wrap) -> Layout:
    """``calls`` as rows of independent elements, with the shapes that this gives the variables."""
    names = list(model.input_spec)
    types = list(model.input_spec.values())
    if not names:
        return Layout((), {}, 0, ())
    sub_batch = {n: settings.sub_batch_ndim(n) or 0 for n in names}
    if calls:
        sub_batch = {n: v.sub_batch_ndim for n, v in zip(names, calls[0], strict=True)}
    own = [tuple(settings.sub_batch_shape(n) or ()) + tuple(t.BASE_SHAPE) for n, t in model.input_spec.items()]
    if calls:
        own = [tuple(v.data.shape[len(dynamic_batch(v)) :]) for v in calls[0]]
    module = wrap(model, sub_batch)
    batches = [torch.broadcast_shapes(*map(dynamic_batch, call)) for call in calls]
    longest = max(batches, key=len, default=())
    with torch.no_grad():
        for extra in _candidates(longest, _parameter_batch(model)):
            rows = _rows(calls, batches, own, extra)
            if _independent(module, rows or _sample(own, extra), extra):
                inputs = _specs(names, types, own, extra)
                note = _note(extra)
                return Layout(inputs, sub_batch, 1, rows, note)
    if not calls:
        # Whether elements are independent cannot be told from inputs that were made up; warmup will say.
        return Layout(_specs(names, types, own, ()), sub_batch, 1, ())
    whole = tuple(v.data.expand((*batches[0], *shape)).clone() for v, shape in zip(calls[0], own, strict=True))
    return Layout(_specs(names, types, own, tuple(batches[0])), sub_batch, 0, (whole,))


def _specs(names: list[str], types: list[Any], own: list[Shape], extra: Shape) -> tuple[TensorSpec, ...]:
    return tuple(
        TensorSpec(n, (*extra, *shape), type=t.__name__, sampling=BY_TYPE.get(t.__name__, Sampling()))
        for n, t, shape in zip(names, types, own, strict=True)
    )


def _note(extra: Shape) -> tuple[Finding, ...]:
    if not extra:
        return ()
    what = f"the last batch dimensions {list(extra)} are part of every variable's shape"
    return (Finding("layout", what, reason="the model is not independent over them"),)


def dynamic_batch(value: Any) -> Shape:
    """The shape of a neml2 tensor without its sub-batch and base dimensions."""
    return tuple(value.data.shape[: value.data.ndim - value.sub_batch_ndim - len(value.BASE_SHAPE)])


def _candidates(batch: Shape, parameters: Shape) -> list[Shape]:
    """No dimension, then ever more trailing ones of what was recorded, then of the parameters' own batch."""
    tails = [tuple(shape[len(shape) - i :]) for shape in (batch, parameters) for i in range(len(shape) + 1)]
    return list(dict.fromkeys(tails))


def _parameter_batch(model: nn.Module) -> Shape:
    """The batch of parameters that have one: their leading dimensions before sub-batch and base."""
    shapes = []
    for module in model.modules():
        types = getattr(module, "_typed_storage_classes", {})
        sub = getattr(module, "_typed_storage_sub_batch_ndim", {})
        for name, parameter in module._parameters.items():
            if parameter is not None and name in types:
                own = len(types[name].BASE_SHAPE) + sub.get(name, 0)
                shapes.append(tuple(parameter.shape[: parameter.ndim - own]))
    try:
        return tuple(torch.broadcast_shapes(*shapes)) if shapes else ()
    except RuntimeError:
        return ()


def _rows(calls: Sequence[Call], batches: Sequence[Shape], own: Sequence[Shape], extra: Shape) -> tuple[Inputs, ...]:
    """Each call flattened to one leading dimension; calls that cannot be given ``extra`` are left out."""
    rows = []
    for call, batch in zip(calls, batches, strict=True):
        try:
            whole = torch.broadcast_shapes(batch, extra)
        except RuntimeError:
            continue
        if extra and tuple(whole[len(whole) - len(extra) :]) != extra:
            continue
        rows.append(
            tuple(
                v.data.expand((*whole, *shape)).reshape((-1, *extra, *shape)).to(torch.float64).clone()
                for v, shape in zip(call, own, strict=True)
            )
        )
    return tuple(r for r in rows if r[0].shape[0] > 0)


def _sample(own: Sequence[Shape], extra: Shape) -> tuple[Inputs, ...]:
    generator = torch.Generator().manual_seed(0)
    return (tuple(0.1 + torch.rand((3, *extra, *s), generator=generator, dtype=torch.float64) for s in own),)


def _independent(module: nn.Module, calls: Sequence[Inputs], extra: Shape) -> bool:
    """Whether a batch of 4 and a batch of 1 give an element the same outputs."""
    if not calls:
        return False
    rows = calls[0]
    picked = torch.arange(4) % rows[0].shape[0]
    # Neighbours that differ: a sum over equal rows could pass for one row times a number.
    batch = tuple(t[picked] * (1 + 1e-3 * torch.arange(4).reshape(-1, *[1] * (t.ndim - 1))) for t in rows)
    try:
        together = module(*batch)
        alone = [module(*(t[i : i + 1] for t in batch)) for i in range(4)]
    except Exception:
        return False
    for j, value in enumerate(together):
        parts = [single[j] for single in alone]
        if value.shape == parts[0].shape and all(torch.equal(p, value) for p in parts):
            continue
        if value.shape[:1] != (4,) or any(p.shape != (1, *value.shape[1:]) for p in parts):
            return False
        if not torch.allclose(torch.cat(parts), value, rtol=1e-9, atol=0.0, equal_nan=True):
            return False
    return True

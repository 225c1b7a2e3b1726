"""Batch dimensions of a NEML2 variable, and dimensions that belong to the variable.

NEML2's tensors are ``(*dynamic batch, *sub-batch, *base)``. Sub-batch and base belong to the variable. So do
trailing dynamic dimensions over which the model is not independent: it sums over them, or has parameters with a
batch of their own. They are found by trying: the fewest such dimensions with which the elements of a leading batch
are independent. Where none work, the full shapes are kept, fixed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from exporter.archive.contract import Finding
from exporter.archive.tensor_spec import Sampling, TensorSpec
from exporter.frontends.neml2.driver_recording import Call
from exporter.model.source import Inputs

Shape = tuple[int, ...]
# Samples for variables without recorded values. Modified Rodrigues parameters of a rotation below half a turn
# have a length below 1 (neml2/types/mrp.py).
BY_TYPE = {"MRP": Sampling("uniform", -0.4, 0.4), "Quaternion": Sampling("uniform", 0.1, 1.0)}
Wrap = Callable[[nn.Module, Mapping[str, int]], nn.Module]


@dataclass(frozen=True)
class Layout:
    """Batch and event dimensions of a model's variables, with the recorded calls in that layout."""

    inputs: tuple[TensorSpec, ...]
    sub_batch: dict[str, int]
    batch_ndim: int
    calls: tuple[Inputs, ...]
    findings: tuple[Finding, ...] = ()


def infer_layout(model: Any, calls: Sequence[Call], settings: Any, wrap: Wrap) -> Layout:
    """Infer the layout: ``calls`` as rows of independent elements, with the event shapes of the variables."""
    names = list(model.input_spec)
    types = list(model.input_spec.values())
    if not names:
        return Layout((), {}, 0, ())
    sub_batch = {n: settings.sub_batch_ndim(n) or 0 for n in names}
    if calls:
        sub_batch = {n: v.sub_batch_ndim for n, v in zip(names, calls[0], strict=True)}
    event_shapes = [tuple(settings.sub_batch_shape(n) or ()) + tuple(t.BASE_SHAPE) for n, t in model.input_spec.items()]
    if calls:
        event_shapes = [tuple(v.data.shape[len(get_dynamic_batch(v)) :]) for v in calls[0]]
    module = wrap(model, sub_batch)
    batches = [torch.broadcast_shapes(*map(get_dynamic_batch, call)) for call in calls]
    longest = max(batches, key=len, default=())
    with torch.no_grad():
        for extra in _list_candidates(longest, _broadcast(find_batches(model).values())):
            rows = _flatten_calls(calls, batches, event_shapes, extra)
            if _is_independent(module, rows or _make_sample(event_shapes, extra), extra):
                inputs = _make_specs(names, types, event_shapes, extra)
                findings = _describe_extra(extra)
                return Layout(inputs, sub_batch, 1, rows, findings)
    if not calls:
        # Made-up inputs cannot show whether elements are independent; warmup will.
        return Layout(_make_specs(names, types, event_shapes, ()), sub_batch, 1, ())
    values = zip(calls[0], event_shapes, strict=True)
    full_call = tuple(v.data.expand((*batches[0], *shape)).clone() for v, shape in values)
    return Layout(_make_specs(names, types, event_shapes, tuple(batches[0])), sub_batch, 0, (full_call,))


def _make_specs(names: list[str], types: list[Any], event_shapes: list[Shape], extra: Shape) -> tuple[TensorSpec, ...]:
    return tuple(
        TensorSpec(name, (*extra, *shape), type=t.__name__, sampling=BY_TYPE.get(t.__name__, Sampling()))
        for name, t, shape in zip(names, types, event_shapes, strict=True)
    )


def _describe_extra(extra: Shape) -> tuple[Finding, ...]:
    if not extra:
        return ()
    what = f"the last batch dimensions {list(extra)} are part of every variable's shape"
    return (Finding("layout", what, reason="the model is not independent over them"),)


def get_dynamic_batch(value: Any) -> Shape:
    """Return the shape of a neml2 tensor without its sub-batch and base dimensions."""
    return tuple(value.data.shape[: value.data.ndim - value.sub_batch_ndim - len(value.BASE_SHAPE)])


def _list_candidates(batch: Shape, parameters: Shape) -> list[Shape]:
    """Return no dimension, then ever more trailing ones of the recorded batch, then of the parameters' own batch."""
    tails = [tuple(shape[len(shape) - i :]) for shape in (batch, parameters) for i in range(len(shape) + 1)]
    return list(dict.fromkeys(tails))


def _broadcast(shapes: Iterable[Shape]) -> Shape:
    """Return the shape that these broadcast to, none if they do not."""
    try:
        return tuple(torch.broadcast_shapes(*shapes))
    except RuntimeError:
        return ()


def find_batches(model: nn.Module) -> dict[str, Shape]:
    """Return the batch of each parameter that has one: its leading dimensions before sub-batch and base."""
    batches = {}
    for name, parameter in model.named_parameters():
        path, _, local_name = name.rpartition(".")
        holder: Any = model.get_submodule(path)
        types = getattr(holder, "_typed_storage_classes", {})
        if local_name in types:
            sub_batch_ndim = getattr(holder, "_typed_storage_sub_batch_ndim", {}).get(local_name, 0)
            batch = parameter.shape[: parameter.ndim - len(types[local_name].BASE_SHAPE) - sub_batch_ndim]
            batches |= {name: tuple(batch)} if batch else {}
    return batches


def _flatten_calls(
    calls: Sequence[Call], batches: Sequence[Shape], event_shapes: Sequence[Shape], extra: Shape
) -> tuple[Inputs, ...]:
    """Flatten each call to one leading dimension; calls that cannot be given ``extra`` are left out."""
    rows = []
    for call, batch in zip(calls, batches, strict=True):
        try:
            full_shape = torch.broadcast_shapes(batch, extra)
        except RuntimeError:
            continue
        if extra and tuple(full_shape[len(full_shape) - len(extra) :]) != extra:
            continue
        pairs = [(v.data.expand((*full_shape, *shape)), shape) for v, shape in zip(call, event_shapes, strict=True)]
        rows.append(tuple(v.reshape((-1, *extra, *shape)).to(torch.float64).clone() for v, shape in pairs))
    return tuple(r for r in rows if r[0].shape[0] > 0)


def _make_sample(event_shapes: Sequence[Shape], extra: Shape) -> tuple[Inputs, ...]:
    generator = torch.Generator().manual_seed(0)
    return (tuple(0.1 + torch.rand((3, *extra, *s), generator=generator, dtype=torch.float64) for s in event_shapes),)


def _is_independent(module: nn.Module, calls: Sequence[Inputs], extra: Shape) -> bool:
    """Return whether a batch of 4 and a batch of 1 give an element the same outputs."""
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

"""Lowering rules of operators that write along a dimension, at constant indices and ones that depend on the data."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from exporter.backends.c_kernel.expression_graph import BOOL, Expr, where
from exporter.backends.c_kernel.symbolic_tensor import OperatorCall, SymbolicTensor, lowers

# A write at an index that depends on the data compares it with every place; more are refused.
MOST_COMPARISONS = 4096
REDUCTIONS = {"sum": "add", "prod": "mul", "amax": "max", "amin": "min", "mean": "add", "add": "add", "multiply": "mul"}


@dataclass(frozen=True)
class _Cell:
    """A number that is written to. ``is_new`` says that the next one takes its place; ``count`` numbers were added."""

    value: Expr
    is_new: Expr | bool
    count: Expr


@dataclass(frozen=True)
class _Write:
    """How a number is written: by an operation, or (without one) in the place of what is there."""

    call: OperatorCall
    op: str

    def put(self, cell: _Cell, value: Expr, condition: Expr | None) -> _Cell:
        """Return the cell after a write, if the condition holds."""
        # All largest numbers share the derivative, which a pair of them does not know.
        extra = ("of many",) if self.op in ("max", "min") else ()
        combined = cell.value.apply(self.op, value, extra=extra) if self.op else value
        if cell.is_new is not False:
            combined = value if cell.is_new is True else where(cell.is_new, value, combined)
        if condition is None:
            return _Cell(combined, False, cell.count + 1.0)
        is_new = cell.is_new
        if is_new is not False:
            stays = condition.apply("not", dtype=BOOL)
            is_new = stays if is_new is True else is_new & stays
        return _Cell(where(condition, combined, cell.value), is_new, where(condition, cell.count + 1.0, cell.count))


def _write_along(
    call: OperatorCall, dim: int, index: Any, source: Any, op: str, *, include_self: bool = True, is_mean: bool = False
) -> SymbolicTensor:
    """Write ``source`` along ``dim`` of the first argument at ``index``, of the same shape."""
    target = call.dispatch.to_symbol(call.args[0])
    if is_mean and not target.dtype.is_floating_point:
        raise call.dispatch.unsupported_error(f"aten::{call.name} to the mean of whole numbers", "floating numbers")
    places, values = call.dispatch.to_symbol(index).ids, call.cast(source, target.dtype).ids
    if not places.numel():
        return target
    places = places if places.ndim else places.reshape(1)
    if target.ids.ndim == 0:
        target = SymbolicTensor(target.ids.reshape(1), target.dtype)
    values = values if values.ndim or not isinstance(source, torch.Tensor) else values.reshape(1)
    values = values.expand(places.shape) if values.ndim == 0 else values[tuple(map(slice, places.shape))]
    ids = target.ids.movedim(dim, -1).clone()
    places, values = (v.movedim(dim, -1) for v in (places, values))
    write, numeric = _Write(call, op), call.make_constant
    for lead in itertools.product(*map(range, places.shape[:-1])):
        cells = [
            _Cell(Expr(call.graph, i), not include_self, numeric(float(include_self), target.dtype))
            for i in ids[lead].tolist()
        ]
        _write_row(
            cells,
            [Expr(call.graph, i) for i in places[lead].tolist()],
            [Expr(call.graph, i) for i in values[lead].tolist()],
            write,
        )
        ids[lead] = torch.tensor([_finish(cell, is_mean=is_mean).index for cell in cells])
    return SymbolicTensor(ids.movedim(-1, dim).reshape(call.args[0].shape), target.dtype)


def _write_row(cells: list[_Cell], places: Sequence[Expr], values: Sequence[Expr], write: _Write) -> None:
    unknown = sum(place.constant is None for place in places)
    if unknown * len(cells) > MOST_COMPARISONS:
        what = f"aten::{write.call.name} at {unknown} indices that depend on the data, of {len(cells)} numbers"
        raise write.call.dispatch.unsupported_error(what, f"at most {MOST_COMPARISONS} comparisons")
    for place, value in zip(places, values, strict=True):
        if place.constant is not None:
            cells[place.constant] = write.put(cells[place.constant], value, None)
            continue
        for j, cell in enumerate(cells):
            cells[j] = write.put(cell, value, place.equals(j))


def _finish(cell: _Cell, *, is_mean: bool) -> Expr:
    if not is_mean:
        return cell.value
    # What nothing was written to stays.
    return cell.value / where(cell.count.equals(0.0), 1.0, cell.count)


@lowers("scatter", "scatter_add", "scatter_reduce")
def lower_scatter(call: OperatorCall) -> SymbolicTensor:
    """Lower writes at indices along a dimension: in the place of what is there, added to it, or reduced with it."""
    _, dim, index, source, *rest = call.args
    reduction = rest[0] if rest else call.kwargs.get("reduce", "add" if call.name == "scatter_add" else "")
    include_self = call.kwargs.get("include_self", True)
    op = REDUCTIONS[reduction] if reduction else ""
    return _write_along(call, dim, index, source, op, include_self=include_self, is_mean=reduction == "mean")


@lowers("index_add", "index_copy", "index_reduce")
def lower_index_write(call: OperatorCall) -> SymbolicTensor:
    """Lower writes of slices at the indices of a vector."""
    _, dim, index, source, *rest = call.args
    target = call.dispatch.to_symbol(call.args[0])
    values = call.dispatch.to_symbol(source)
    alpha = call.kwargs.get("alpha", 1)
    if alpha != 1:
        values = call.apply(lambda x: x * alpha, target.dtype, values)
    row = call.dispatch.to_symbol(index).ids.reshape(
        [-1 if d == dim % max(target.ids.ndim, 1) else 1 for d in range(max(target.ids.ndim, 1))]
    )
    ids = values.ids if values.ids.ndim or target.ids.ndim > 1 else values.ids.reshape(1)
    # A single slice may lack the dimension.
    ids = ids if ids.ndim >= target.ids.ndim else ids.unsqueeze(dim)
    places = SymbolicTensor(row.expand(ids.shape), torch.int64)
    reduction = rest[0] if call.name == "index_reduce" else ""
    op = {"index_add": "add", "index_copy": ""}.get(call.name) if not reduction else REDUCTIONS[reduction]
    assert op is not None
    include_self = call.kwargs.get("include_self", True)
    values = SymbolicTensor(ids, values.dtype)
    return _write_along(call, dim, places, values, op, include_self=include_self, is_mean=reduction == "mean")

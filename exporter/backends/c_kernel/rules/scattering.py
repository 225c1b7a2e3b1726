"""Lowering rules of operators that write along a dimension, at indices, and by masks; all may depend on the data."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from exporter.backends.c_kernel.expression_graph import BOOL, Expr, where
from exporter.backends.c_kernel.symbolic_tensor import OperatorCall, SymbolicTensor, get_dtype_name, lowers, make_symbol
from exporter.backends.c_kernel.table_lookup import wrap_index

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


@lowers("index_put", "_unsafe_index_put")
def lower_index_put(call: OperatorCall) -> torch.Tensor:
    """Lower writes at an index for each of some dimensions, or where a mask says so: in the place, or added."""
    target, indices, values, *rest = call.args
    accumulates = bool(rest and rest[0])
    constant_indices = [call.dispatch.read_constants(i) if isinstance(i, SymbolicTensor) else i for i in indices]
    if any(k is None and i is not None for k, i in zip(constant_indices, indices, strict=True)):
        return _put_at_data(call, accumulates)
    target = call.dispatch.to_symbol(target)
    ids, values = target.ids, call.cast(values, target.dtype).ids
    if not accumulates:
        written = torch.ops.aten.index_put.default(ids, constant_indices, values)
        return SymbolicTensor(written, target.dtype)
    positions = torch.ops.aten.index.Tensor(torch.arange(ids.numel()).reshape(ids.shape), constant_indices)
    nodes, dtype_name = ids.reshape(-1).tolist(), get_dtype_name(target.dtype, call.graph.origin)
    added = values.expand(positions.shape).reshape(-1).tolist()
    for position, value in zip(positions.reshape(-1).tolist(), added, strict=True):
        nodes[position] = call.graph.add("add", (nodes[position], value), dtype_name)
    return make_symbol(nodes, ids.shape, target.dtype)


def _put_at_data(call: OperatorCall, accumulates: bool) -> torch.Tensor:
    """Write at indices that depend on the data; a negative one counts from the end."""
    target = call.dispatch.to_symbol(call.args[0])
    symbols = [None if i is None else call.dispatch.to_symbol(i) for i in call.args[1]]
    used = [(d, symbol) for d, symbol in enumerate(symbols) if symbol is not None]
    if len(used) == 1 and used[0][1].dtype == torch.bool:
        return _put_where(call, target, *used[0], accumulates)
    first, last = used[0][0], used[-1][0]
    if last - first + 1 != len(used) or any(symbol.dtype == torch.bool for _, symbol in used):
        what = "aten::index_put at indices that depend on the data"
        raise call.dispatch.unsupported_error(what, "indices of adjacent dimensions, or one mask")
    lead, sizes, behind = (target.ids.shape[s] for s in (slice(first), slice(first, last + 1), slice(last + 1, None)))
    places = torch.broadcast_tensors(*(symbol.ids for _, symbol in used))
    hits = _find_hits(call, list(zip(*(ids.reshape(-1).tolist() for ids in places), strict=True)), sizes)
    values = call.cast(call.args[2], target.dtype).ids.expand(*lead, *places[0].shape, *behind)
    values = values.reshape(*lead, len(hits), *behind).movedim(first, -1)
    rows = target.ids.reshape(*lead, math.prod(sizes), *behind).movedim(first, -1).clone()
    write, unused = _Write(call, "add" if accumulates else ""), call.make_constant(0.0, torch.float64)
    for row in itertools.product(*map(range, rows.shape[:-1])):
        cells = [_Cell(Expr(call.graph, i), False, unused) for i in rows[row].tolist()]
        for value, hit in zip(values[row].tolist(), hits, strict=True):
            for number, condition in hit:
                cells[number] = write.put(cells[number], Expr(call.graph, value), condition)
        rows[row] = torch.tensor([cell.value.index for cell in cells])
    return SymbolicTensor(rows.movedim(-1, first).reshape(target.ids.shape), target.dtype)


def _find_hits(
    call: OperatorCall, places: Sequence[Sequence[int]], sizes: Sequence[int]
) -> list[list[tuple[int, Expr | None]]]:
    """Return the cells that each place, an index for each dimension, may be, and when it is; a constant index, as that
    of the batch, leaves out all cells with another one."""
    hits, comparisons = [], 0
    for place in places:
        indices = [wrap_index(Expr(call.graph, i), size) for i, size in zip(place, sizes, strict=True)]
        ranges = [range(n) if i.constant is None else [i.constant] for i, n in zip(indices, sizes, strict=True)]
        unknown = [d for d, index in enumerate(indices) if index.constant is None]
        comparisons += math.prod(map(len, ranges)) if unknown else 0
        if comparisons > MOST_COMPARISONS:
            what = f"aten::index_put at {len(places)} indices that depend on the data, of {math.prod(sizes)} numbers"
            raise call.dispatch.unsupported_error(what, f"at most {MOST_COMPARISONS} comparisons")
        hit = []
        for cell in itertools.product(*ranges):
            number = functools.reduce(lambda a, step: a * step[1] + step[0], zip(cell, sizes, strict=True), 0)
            conditions = [indices[d].equals(cell[d]) for d in unknown]
            hit.append((number, functools.reduce(operator.and_, conditions) if conditions else None))
        hits.append(hit)
    return hits


def _put_where(
    call: OperatorCall, target: SymbolicTensor, dim: int, mask: SymbolicTensor, accumulates: bool
) -> torch.Tensor:
    """Write one number, or one for each place behind the mask's dimensions, wherever the mask says so."""
    behind = target.ids.ndim - dim - mask.ids.ndim
    values = call.cast(call.args[2], target.dtype)
    shape = [*values.ids.shape]
    if len(shape) > behind + 1 or (len(shape) == behind + 1 and shape[0] != 1):
        what = "aten::index_put of several numbers by a mask that depends on the data"
        raise call.dispatch.unsupported_error(what, "torch.where, which keeps both sides")
    aligned = SymbolicTensor(values.ids.reshape(shape[-behind:] if behind else []), target.dtype)
    wide = SymbolicTensor(mask.ids.reshape(*mask.ids.shape, *[1] * behind), torch.bool)
    with call.dispatch:
        return torch.where(wide, target + aligned if accumulates else aligned, target)

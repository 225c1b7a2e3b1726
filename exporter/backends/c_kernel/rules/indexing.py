"""Lowering rules of operators that read at indices, constant ones and ones that depend on the data."""

from __future__ import annotations

import itertools
import math

import torch

from exporter.backends.c_kernel import table_lookup
from exporter.backends.c_kernel.symbolic_tensor import OperatorCall, SymbolicTensor, lowers, make_symbol


@lowers("searchsorted", "bucketize")
def lower_searchsorted(call: OperatorCall) -> SymbolicTensor:
    """Lower the count of boundaries below each value; with ``right`` boundaries equal to it count too."""
    table, value = call.args[1::-1] if call.name == "bucketize" else call.args[:2]
    table, sorter = call.dispatch.to_symbol(table), call.kwargs.get("sorter")
    if sorter is not None:
        with call.dispatch:
            table = torch.gather(table, -1, sorter)
    value = call.cast(value, value.dtype if isinstance(value, torch.Tensor) else table.dtype)
    right = call.kwargs.get("right", False) or call.kwargs.get("side") == "right"
    dtype = torch.promote_types(table.dtype, value.dtype)
    bounds, numbers = call.cast(table, dtype).ids, call.cast(value, dtype).ids
    index_dtype = "int32" if call.kwargs.get("out_int32") else "int64"
    if bounds.ndim > 1:
        bounds = bounds.expand(*numbers.shape[:-1], bounds.shape[-1]).unsqueeze(-2)
    bounds = bounds.expand(*numbers.shape, -1).reshape(-1, bounds.shape[-1])
    pairs = zip(numbers.reshape(-1).tolist(), bounds.tolist(), strict=True)
    counts = [table_lookup.count_below(call.graph, number, row, index_dtype, right=right) for number, row in pairs]
    return make_symbol(counts, numbers.shape, getattr(torch, index_dtype))


@lowers("index", "index_select", "gather")
def lower_index(call: OperatorCall) -> SymbolicTensor:
    """Lower a read at an index that depends on the data: a choice between all numbers there, or a table. An index out
    of range, which torch refuses, reads the nearest number."""
    if call.name != "index":
        return _lower_read_along(call)
    operand: SymbolicTensor = call.args[0]
    indices = list(call.args[1]) + [None] * (operand.ids.ndim - len(call.args[1]))
    used = [i for i, v in enumerate(indices) if v is not None]
    if used != list(range(used[0], used[0] + len(used))):
        raise call.dispatch.unsupported_error("aten::index with index tensors of dimensions that are not adjacent")
    symbols = [call.dispatch.to_symbol(indices[i]) for i in used]
    if any(s.dtype == torch.bool for s in symbols):
        what = "aten::index by a mask that depends on the data"
        raise call.dispatch.unsupported_error(what, "torch.where, which keeps both sides")
    sizes = [operand.ids.shape[i] for i in used]
    broadcast = torch.broadcast_tensors(*(s.ids for s in symbols))
    positions = list(zip(*(ids.reshape(-1).tolist() for ids in broadcast), strict=True))
    leading, rest = operand.ids.shape[: used[0]], operand.ids.shape[used[-1] + 1 :]
    # (leading, sizes..., rest) to (leading, rest, all positions)
    source = operand.ids.reshape(*leading, math.prod(sizes), *rest).movedim(len(leading), -1)
    pairs = itertools.product(source.reshape(-1, math.prod(sizes)).tolist(), positions)
    nodes = [table_lookup.read_multi_index(call.graph, row, position, sizes) for row, position in pairs]
    ids = torch.tensor(nodes, dtype=torch.int64).reshape(*leading, *rest, len(positions)).movedim(-1, len(leading))
    return SymbolicTensor(ids.reshape(*leading, *broadcast[0].shape, *rest), operand.dtype)


def _lower_read_along(call: OperatorCall) -> SymbolicTensor:
    """Lower ``gather``, which has indices for each row along a dimension, and ``index_select``, which shares them."""
    operand, dim = call.args[0], call.args[1]
    index, source = call.dispatch.to_symbol(call.args[2]).ids, operand.ids.movedim(dim, -1)
    if call.name == "gather":
        index = index.movedim(dim, -1)
        source = source[tuple(slice(0, size) for size in index.shape[:-1])]
    else:
        index = index.reshape(-1).expand(*source.shape[:-1], -1)
    rows, positions = (ids.reshape(math.prod(ids.shape[:-1]), -1).tolist() for ids in (source, index))
    pairs = zip(rows, positions, strict=True)
    nodes = [[table_lookup.read_table(call.graph, row, p) for p in places] for row, places in pairs]
    return SymbolicTensor(torch.tensor(nodes, dtype=torch.int64).reshape(index.shape).movedim(-1, dim), operand.dtype)

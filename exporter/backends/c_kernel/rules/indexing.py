"""Lowering rules of operators that read and write at indices, constant ones and ones that depend on the data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from exporter.backends.c_kernel import table_lookup
from exporter.backends.c_kernel.registry import lowers
from exporter.backends.c_kernel.symbolic_tensor import SymbolicDispatch, SymbolicTensor, get_dtype_name


@lowers("searchsorted", "bucketize")
def lower_searchsorted(
    dispatch: SymbolicDispatch, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> SymbolicTensor:
    """Lower the count of boundaries below each value; with ``right`` boundaries equal to it count too."""
    if kwargs.get("sorter") is not None:
        raise dispatch.unsupported_error("aten::searchsorted with a sorter", "a sorted table")
    bucketize = func.overloadpacket.__name__ == "bucketize"
    table, value = (args[1], args[0]) if bucketize else (args[0], args[1])
    table = dispatch.to_symbol(table)
    value = dispatch.to_symbol(value if isinstance(value, torch.Tensor) else torch.tensor(value, dtype=table.dtype))
    right = kwargs.get("right", False) or kwargs.get("side") == "right"
    dtype = torch.promote_types(table.dtype, value.dtype)
    table, value = dispatch.cast(table, dtype), dispatch.cast(value, dtype)
    graph = dispatch.graph
    index_dtype = "int32" if kwargs.get("out_int32") else "int64"
    boundaries = table.ids.expand(*value.ids.shape[:-1], table.ids.shape[-1]) if table.ids.ndim > 1 else table.ids
    bounds_per_value = (
        boundaries.unsqueeze(-2).expand(*value.ids.shape, -1)
        if table.ids.ndim > 1
        else boundaries.expand(*value.ids.shape, -1)
    )
    counts = [
        table_lookup.count_below(graph, number, bounds, index_dtype, right=right)
        for number, bounds in zip(
            value.ids.reshape(-1).tolist(),
            bounds_per_value.reshape(-1, bounds_per_value.shape[-1]).tolist(),
            strict=True,
        )
    ]
    return SymbolicTensor(torch.tensor(counts, dtype=torch.int64).reshape(value.ids.shape), getattr(torch, index_dtype))


@lowers("index", "index_select", "gather")
def lower_index(
    dispatch: SymbolicDispatch, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> SymbolicTensor:
    """Lower a read at an index that depends on the data: a choice between all numbers there, or a table. An index out
    of range, which torch refuses, reads the nearest number."""
    graph, name = dispatch.graph, func.overloadpacket.__name__
    operand: SymbolicTensor = args[0]
    if name == "gather":
        dim, index = args[1], dispatch.to_symbol(args[2])
        source = operand.ids.movedim(dim, -1)
        index_nodes = index.ids.movedim(dim, -1)
        source = source[tuple(slice(0, s) for s in index_nodes.shape[:-1])]
        flat = source.reshape(-1, source.shape[-1]).tolist()
        index_rows = index_nodes.reshape(-1, index_nodes.shape[-1]).tolist()
        nodes = [
            [table_lookup.read_table(graph, row, p) for p in positions]
            for row, positions in zip(flat, index_rows, strict=True)
        ]
        return SymbolicTensor(
            torch.tensor(nodes, dtype=torch.int64).reshape(index_nodes.shape).movedim(-1, dim), operand.dtype
        )
    if name == "index_select":
        dim, index = args[1], dispatch.to_symbol(args[2])
        source = operand.ids.movedim(dim, -1)
        flat = source.reshape(-1, source.shape[-1]).tolist()
        nodes = [[table_lookup.read_table(graph, row, p) for p in index.ids.reshape(-1).tolist()] for row in flat]
        return SymbolicTensor(
            torch.tensor(nodes, dtype=torch.int64).reshape(*source.shape[:-1], -1).movedim(-1, dim), operand.dtype
        )
    indices = list(args[1]) + [None] * (operand.ids.ndim - len(args[1]))
    used = [i for i, v in enumerate(indices) if v is not None]
    if used != list(range(used[0], used[0] + len(used))):
        raise dispatch.unsupported_error("aten::index with index tensors of dimensions that are not adjacent")
    symbols = [dispatch.to_symbol(indices[i]) for i in used]
    if any(s.dtype == torch.bool for s in symbols):
        raise dispatch.unsupported_error(
            "aten::index by a mask that depends on the data", "torch.where, which keeps both sides"
        )
    sizes = [operand.ids.shape[i] for i in used]
    broadcast = torch.broadcast_tensors(*(s.ids for s in symbols))
    flat = [w.reshape(-1).tolist() for w in broadcast]
    leading, rest = operand.ids.shape[: used[0]], operand.ids.shape[used[-1] + 1 :]
    # (leading, sizes..., rest) to (leading, rest, all positions)
    source = operand.ids.reshape(*leading, math.prod(sizes), *rest).movedim(len(leading), -1)
    rows = source.reshape(-1, math.prod(sizes)).tolist()
    nodes = [
        table_lookup.read_multi_index(graph, row, positions, sizes)
        for row in rows
        for positions in zip(*flat, strict=True)
    ]
    count = len(flat[0])
    shaped = torch.tensor(nodes, dtype=torch.int64).reshape(*leading, *rest, count).movedim(-1, len(leading))
    return SymbolicTensor(shaped.reshape(*leading, *broadcast[0].shape, *rest), operand.dtype)


@lowers("index_put", "_unsafe_index_put")
def lower_scatter(
    dispatch: SymbolicDispatch, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> SymbolicTensor:
    """Lower ``index_put`` at constant indices."""
    target, indices, values, *rest = args
    constant_indices = [dispatch.read_constants(i) if isinstance(i, SymbolicTensor) else i for i in indices]
    if any(k is None and i is not None for k, i in zip(constant_indices, indices, strict=True)):
        raise dispatch.unsupported_error("aten::index_put at indices that depend on the data")
    target, values = dispatch.to_symbol(target), dispatch.cast(dispatch.to_symbol(values), target.dtype)
    if not (rest and rest[0]):
        return SymbolicTensor(torch.index_put(target.ids, constant_indices, values.ids), target.dtype)
    dtype_name = get_dtype_name(target.dtype, dispatch.graph.origin)
    positions = torch.arange(target.ids.numel()).reshape(target.ids.shape)[
        tuple(slice(None) if k is None else k for k in constant_indices)
    ]
    nodes = target.ids.reshape(-1).tolist()
    for position, value in zip(
        positions.reshape(-1).tolist(), values.ids.expand(positions.shape).reshape(-1).tolist(), strict=True
    ):
        nodes[position] = dispatch.graph.add("add", (nodes[position], value), dtype_name)
    return SymbolicTensor(torch.tensor(nodes, dtype=torch.int64).reshape(target.ids.shape), target.dtype)

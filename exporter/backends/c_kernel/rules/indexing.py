"""Rows of operators that read and write at places: known ones, and ones that depend on the data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from exporter.backends.c_kernel import table_lookup
from exporter.backends.c_kernel.registry import lowers
from exporter.backends.c_kernel.symbolic_tensor import Lowering, Symbol, kind_of


@lowers("searchsorted", "bucketize")
def searched(lowering: Lowering, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Symbol:
    """The number of boundaries below each value; at ``right`` those that are equal count too."""
    if kwargs.get("sorter") is not None:
        raise lowering.refused("aten::searchsorted with a sorter", "a table that is in order")
    bucketize = func.overloadpacket.__name__ == "bucketize"
    table, value = (args[1], args[0]) if bucketize else (args[0], args[1])
    table = lowering.symbol(table)
    value = lowering.symbol(value if isinstance(value, torch.Tensor) else torch.tensor(value, dtype=table.dtype))
    right = kwargs.get("right", False) or kwargs.get("side") == "right"
    dtype = torch.promote_types(table.dtype, value.dtype)
    table, value = lowering.cast(table, dtype), lowering.cast(value, dtype)
    terms = lowering.terms
    counted = "int32" if kwargs.get("out_int32") else "int64"
    rows = table.ids.expand(*value.ids.shape[:-1], table.ids.shape[-1]) if table.ids.ndim > 1 else table.ids
    each = rows.unsqueeze(-2).expand(*value.ids.shape, -1) if table.ids.ndim > 1 else rows.expand(*value.ids.shape, -1)
    found = [
        table_lookup.below(terms, number, bounds, counted, right=right)
        for number, bounds in zip(
            value.ids.reshape(-1).tolist(), each.reshape(-1, each.shape[-1]).tolist(), strict=True
        )
    ]
    return Symbol(torch.tensor(found, dtype=torch.int64).reshape(value.ids.shape), getattr(torch, counted))


@lowers("index", "index_select", "gather")
def looked_up(lowering: Lowering, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Symbol:
    """A read at a place that depends on the data: a choice between all that stand there, or a table. Where the place is
    outside, which torch refuses, it is the nearest."""
    terms, name = lowering.terms, func.overloadpacket.__name__
    of: Symbol = args[0]
    if name == "gather":
        dim, index = args[1], lowering.symbol(args[2])
        source = of.ids.movedim(dim, -1)
        where = index.ids.movedim(dim, -1)
        source = source[tuple(slice(0, s) for s in where.shape[:-1])]
        flat = source.reshape(-1, source.shape[-1]).tolist()
        places = where.reshape(-1, where.shape[-1]).tolist()
        found = [[table_lookup.read(terms, row, p) for p in at] for row, at in zip(flat, places, strict=True)]
        return Symbol(torch.tensor(found, dtype=torch.int64).reshape(where.shape).movedim(-1, dim), of.dtype)
    if name == "index_select":
        dim, index = args[1], lowering.symbol(args[2])
        source = of.ids.movedim(dim, -1)
        flat = source.reshape(-1, source.shape[-1]).tolist()
        found = [[table_lookup.read(terms, row, p) for p in index.ids.reshape(-1).tolist()] for row in flat]
        return Symbol(torch.tensor(found, dtype=torch.int64).reshape(*source.shape[:-1], -1).movedim(-1, dim), of.dtype)
    indices = list(args[1]) + [None] * (of.ids.ndim - len(args[1]))
    used = [i for i, v in enumerate(indices) if v is not None]
    if used != list(range(used[0], used[0] + len(used))):
        raise lowering.refused("aten::index with tensors that do not stand side by side")
    symbols = [lowering.symbol(indices[i]) for i in used]
    if any(s.dtype == torch.bool for s in symbols):
        raise lowering.refused("aten::index by a mask that depends on the data", "torch.where, which keeps both sides")
    sizes = [of.ids.shape[i] for i in used]
    whole = torch.broadcast_tensors(*(s.ids for s in symbols))
    flat = [w.reshape(-1).tolist() for w in whole]
    lead, rest = of.ids.shape[: used[0]], of.ids.shape[used[-1] + 1 :]
    # (lead, sizes..., rest) to (lead, rest, all places)
    source = of.ids.reshape(*lead, math.prod(sizes), *rest).movedim(len(lead), -1)
    rows = source.reshape(-1, math.prod(sizes)).tolist()
    found = [table_lookup.read_at(terms, row, at, sizes) for row in rows for at in zip(*flat, strict=True)]
    count = len(flat[0])
    shaped = torch.tensor(found, dtype=torch.int64).reshape(*lead, *rest, count).movedim(-1, len(lead))
    return Symbol(shaped.reshape(*lead, *whole[0].shape, *rest), of.dtype)


@lowers("index_put", "_unsafe_index_put")
def put(lowering: Lowering, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Symbol:
    """``index_put`` at places that are known."""
    target, indices, values, *rest = args
    known = [lowering.constants(i) if isinstance(i, Symbol) else i for i in indices]
    if any(k is None and i is not None for k, i in zip(known, indices, strict=True)):
        raise lowering.refused("aten::index_put at places that depend on the data")
    target, values = lowering.symbol(target), lowering.cast(lowering.symbol(values), target.dtype)
    if not (rest and rest[0]):
        return Symbol(torch.index_put(target.ids, known, values.ids), target.dtype)
    kind = kind_of(target.dtype, lowering.terms.origin)
    flat = torch.arange(target.ids.numel()).reshape(target.ids.shape)[
        tuple(slice(None) if k is None else k for k in known)
    ]
    found = target.ids.reshape(-1).tolist()
    for place, value in zip(flat.reshape(-1).tolist(), values.ids.expand(flat.shape).reshape(-1).tolist(), strict=True):
        found[place] = lowering.terms.make("add", (found[place], value), kind)
    return Symbol(torch.tensor(found, dtype=torch.int64).reshape(target.ids.shape), target.dtype)

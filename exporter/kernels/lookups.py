"""Rows of operators that read and write at places: known ones, and ones that depend on the data."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from exporter.kernels.ssa import BOOL, Terms
from exporter.kernels.symbols import Lowering, Symbol, kind_of


def searched(lowering: Lowering, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Symbol:
    """The number of boundaries below each value; at ``right`` those that are equal count too."""
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
    found = []
    for number, bounds in zip(value.ids.reshape(-1).tolist(), each.reshape(-1, each.shape[-1]).tolist(), strict=True):
        # NaN is behind all.
        above = [terms.make("lt" if right else "le", (number, b), BOOL) for b in bounds]
        below = [terms.make("not", (a,), BOOL) for a in above]
        counts = [terms.make("cast", (c,), counted) for c in below]
        found.append(functools.reduce(lambda a, b: terms.make("add", (a, b), counted), counts))
    return Symbol(torch.tensor(found, dtype=torch.int64).reshape(value.ids.shape), getattr(torch, counted))


def looked_up(lowering: Lowering, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Symbol:
    """A read at a place that depends on the data: a choice between all that stand there. Where the place is outside,
    which torch refuses, it is the nearest."""
    terms = lowering.terms
    of: Symbol = args[0]
    kind = kind_of(of.dtype, terms.origin)

    def read(candidates: list[int], place: int) -> int:
        counted = terms[place].kind
        found = candidates[-1]
        for at in range(len(candidates) - 2, -1, -1):
            here = terms.make("le", (place, terms.constant(at, counted)), BOOL)
            found = terms.make("where", (here, candidates[at], found), kind)
        return found

    def from_end(place: int, size: int) -> int:
        counted = terms[place].kind
        below = terms.make("lt", (place, terms.constant(0, counted)), BOOL)
        wrapped = terms.make("add", (place, terms.constant(size, counted)), counted)
        return terms.make("where", (below, wrapped, place), counted)

    if name == "gather":
        dim, index = args[1], lowering.symbol(args[2])
        source = of.ids.movedim(dim, -1)
        where = index.ids.movedim(dim, -1)
        source = source[tuple(slice(0, s) for s in where.shape[:-1])]
        flat = source.reshape(-1, source.shape[-1]).tolist()
        places = where.reshape(-1, where.shape[-1]).tolist()
        found = [[read(row, p) for p in at] for row, at in zip(flat, places, strict=True)]
        return Symbol(torch.tensor(found, dtype=torch.int64).reshape(where.shape).movedim(-1, dim), of.dtype)
    if name == "index_select":
        dim, index = args[1], lowering.symbol(args[2])
        source = of.ids.movedim(dim, -1)
        flat = source.reshape(-1, source.shape[-1]).tolist()
        found = [[read(row, p) for p in index.ids.reshape(-1).tolist()] for row in flat]
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
    found = []
    for row in rows:
        for at in zip(*flat, strict=True):
            candidates = torch.tensor(row).reshape(sizes)
            found.append(_read_at(terms, candidates, at, sizes, read, from_end))
    count = len(flat[0])
    shaped = torch.tensor(found, dtype=torch.int64).reshape(*lead, *rest, count).movedim(-1, len(lead))
    return Symbol(shaped.reshape(*lead, *whole[0].shape, *rest), of.dtype)


def _read_at(
    terms: Terms, candidates: torch.Tensor, at: Sequence[int], sizes: Sequence[int], read: Any, from_end: Any
) -> int:
    place, size = at[0], sizes[0]
    value = terms.value(place)
    inner = [
        int(part) if part.ndim == 0 else _read_at(terms, part, at[1:], sizes[1:], read, from_end)
        for part in (
            candidates
            if value is None
            else candidates[int(value) : int(value) + 1]
            if value >= 0
            else candidates[int(value)][None]
        )
    ]
    return inner[0] if value is not None else read(inner, from_end(place, size))


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

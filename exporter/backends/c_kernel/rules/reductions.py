"""Rows of operators that take many numbers to one: sums, norms, products of matrices."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from exporter.backends.c_kernel.dtype_promotion import as_terms, result_dtype, scaled_by
from exporter.backends.c_kernel.expression_graph import BOOL
from exporter.backends.c_kernel.registry import Rule, lowers
from exporter.backends.c_kernel.symbolic_tensor import Lowering, Symbol, kind_of


def _reduced(symbol: Symbol, dims: Any, *, keep: bool, fold: Callable[[list[int]], int], dtype: torch.dtype) -> Symbol:
    ids = symbol.ids
    if dims is None or dims == []:
        dims = list(range(ids.ndim))
    dims = [d % max(ids.ndim, 1) for d in ([dims] if isinstance(dims, int) else dims)]
    left = [d for d in range(ids.ndim) if d not in dims]
    moved = ids.permute(*left, *dims) if ids.ndim else ids
    lead = [ids.shape[d] for d in left]
    rows = moved.reshape(*lead, -1) if ids.ndim else ids.reshape(1)
    flat = rows.reshape(-1, rows.shape[-1]).tolist()
    shape = [1 if d in dims else ids.shape[d] for d in range(ids.ndim)] if keep else lead
    return Symbol(torch.tensor([fold(one) for one in flat], dtype=torch.int64).reshape(shape), dtype)


def reduction(op: str, empty: float | None) -> Rule:
    def row(lowering: Lowering, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Symbol:
        dtype = result_dtype(lowering, func, args, kwargs)
        kind = kind_of(dtype, lowering.terms.origin)
        dims = args[1] if len(args) > 1 else kwargs.get("dim")
        keep = bool(args[2] if len(args) > 2 else kwargs.get("keepdim", False))
        terms = lowering.terms
        # Its derivative is shared by all that are largest, which no pair knows of.
        extra = ("of many",) if op in ("max", "min") else ()

        def fold(numbers: list[int]) -> int:
            if not numbers:
                return terms.constant(empty or 0.0, kind)
            whole = functools.reduce(lambda a, b: terms.make(op, (a, b), kind, extra), numbers)
            count = terms.constant(float(len(numbers)), kind)
            return terms.make("div", (whole, count), kind) if func.overloadpacket.__name__ == "mean" else whole

        return _reduced(as_terms(lowering, args[0], dtype), dims, keep=keep, fold=fold, dtype=dtype)

    return row


def accumulated(op: str) -> Rule:
    def row(lowering: Lowering, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Symbol:
        dtype = result_dtype(lowering, func, args, kwargs)
        kind = kind_of(dtype, lowering.terms.origin)
        ids = as_terms(lowering, args[0], dtype).ids.movedim(args[1], -1).clone()
        for i in range(1, ids.shape[-1]):
            pairs = zip(ids[..., i - 1].reshape(-1).tolist(), ids[..., i].reshape(-1).tolist(), strict=True)
            made = [lowering.terms.make(op, pair, kind) for pair in pairs]
            ids[..., i] = torch.tensor(made, dtype=torch.int64).reshape(ids.shape[:-1])
        return Symbol(ids.movedim(-1, args[1]), dtype)

    return row


@lowers("linalg_vector_norm")
def norm(lowering: Lowering, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Symbol:
    order = args[1] if len(args) > 1 else kwargs.get("ord", 2)
    if float(order) != 2.0:
        raise lowering.refused(f"a norm of order {order}", "the Euclidean norm")
    dtype = args[0].dtype
    kind = kind_of(dtype, lowering.terms.origin)
    terms = lowering.terms

    def fold(numbers: list[int]) -> int:
        squares = [terms.make("mul", (i, i), kind) for i in numbers]
        whole = functools.reduce(lambda a, b: terms.make("add", (a, b), kind), squares)
        return terms.make("sqrt", (whole,), kind, ("norm",))

    dims = args[2] if len(args) > 2 else kwargs.get("dim")
    keep = bool(args[3] if len(args) > 3 else kwargs.get("keepdim", False))
    return _reduced(lowering.symbol(args[0]), dims, keep=keep, fold=fold, dtype=dtype)


def product(lowering: Lowering, a: Symbol, b: Symbol) -> Symbol:
    """``bmm`` of ``(..., m, k)`` and ``(..., k, n)``."""
    dtype = torch.promote_types(a.dtype, b.dtype)
    kind = kind_of(dtype, lowering.terms.origin)
    terms = lowering.terms
    *lead, m, k = a.ids.shape
    n = b.ids.shape[-1]
    left, right = a.ids.reshape(-1, m, k).tolist(), b.ids.reshape(-1, k, n).tolist()
    found = []
    for x, y in zip(left, right, strict=True):
        for row in x:
            for j in range(n):
                parts = [terms.make("mul", (row[i], y[i][j]), kind) for i in range(k)]
                zero = terms.constant(0, kind)
                found.append(functools.reduce(lambda p, q: terms.make("add", (p, q), kind), parts) if parts else zero)
    return Symbol(torch.tensor(found, dtype=torch.int64).reshape(*lead, m, n), dtype)


@lowers("mm", "bmm", "mv", "dot", "vdot", "addmm", "addmv", "baddbmm")
def multiplied(lowering: Lowering, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Symbol:
    """``mm``, ``bmm``, ``mv``, ``dot``, and ``addmm``, ``baddbmm`` with what they add."""
    name = func.overloadpacket.__name__
    adds = name in ("addmm", "baddbmm", "addmv")
    first, second = (lowering.symbol(v) for v in (args[1:3] if adds else args[:2]))
    vector = name in ("mv", "dot", "vdot", "addmv")
    left = Symbol(first.ids[None], first.dtype) if first.ids.ndim == 1 else first
    right = Symbol(second.ids[:, None], second.dtype) if vector else second
    found = product(lowering, left, right)
    if vector:
        found = Symbol(found.ids[..., 0], found.dtype)
    if first.ids.ndim == 1:
        found = Symbol(found.ids[0], found.dtype)
    if not adds:
        return found
    kind = kind_of(found.dtype, lowering.terms.origin)
    alpha, beta = (lowering.terms.constant(kwargs.get(n, 1), kind) for n in ("alpha", "beta"))

    def add(x: int, y: int) -> int:
        terms = lowering.terms
        return terms.make("add", (scaled_by(terms, kind, y, beta), scaled_by(terms, kind, x, alpha)), kind)

    return lowering.each(add, found.dtype, found, lowering.symbol(args[0]))


@lowers("linalg_cross")
def cross(lowering: Lowering, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Symbol:
    dim = kwargs.get("dim", args[2] if len(args) > 2 else -1)
    dtype = args[0].dtype
    kind = kind_of(dtype, lowering.terms.origin)
    a, b = (i.movedim(dim, 0) for i in torch.broadcast_tensors(*(lowering.symbol(v).ids for v in args[:2])))

    def part(i: int, j: int) -> torch.Tensor:
        def one(p: int, q: int, r: int, s: int) -> int:
            terms = lowering.terms
            return terms.make("sub", (terms.make("mul", (p, q), kind), terms.make("mul", (r, s), kind)), kind)

        return lowering.each(one, dtype, *(Symbol(v, dtype) for v in (a[i], b[j], a[j], b[i]))).ids

    return Symbol(torch.stack([part(1, 2), part(2, 0), part(0, 1)]).movedim(0, dim), dtype)


def truths(op: str) -> Rule:
    def row(lowering: Lowering, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Symbol:
        terms = lowering.terms
        dims = args[1] if len(args) > 1 else kwargs.get("dim")
        keep = bool(args[2] if len(args) > 2 else kwargs.get("keepdim", False))

        def fold(numbers: list[int]) -> int:
            rows = functools.reduce(lambda found, i: found | terms.rows[i], numbers, 0)
            if rows & (rows - 1):
                return terms.mixed("any" if op == "or" else "all")
            return functools.reduce(lambda a, b: terms.make(op, (a, b), BOOL), numbers)

        of = lowering.cast(lowering.symbol(args[0]), torch.bool)
        return _reduced(of, dims, keep=keep, fold=fold, dtype=torch.bool)

    return row


lowers("sum")(reduction("add", 0.0))
lowers("mean")(reduction("add", math.nan))
lowers("prod")(reduction("mul", 1.0))
lowers("amax")(reduction("max", None))
lowers("amin")(reduction("min", None))
lowers("any")(truths("or"))
lowers("all")(truths("and"))
lowers("cumsum")(accumulated("add"))
lowers("cumprod")(accumulated("mul"))

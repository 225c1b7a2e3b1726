"""A row for each operator that computes: which terms it makes. Semantics are torch's on the CPU."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_map

from exporter.kernels.ssa import BOOL, LU, REAL, SOLVED, Terms
from exporter.kernels.symbols import Lowering, Symbol, kind_of

Row = Callable[[Lowering, Any, Sequence[Any], Mapping[str, Any]], Any]
# Of a term table and the arguments' terms, in the kind that the operator computes in.
Scalar = Callable[..., int]


def _result(lowering: Lowering, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.dtype:
    """The dtype that torch gives the result: it is asked, on tensors without numbers."""

    given, named = tree_map(_meta, (list(args), dict(kwargs)))
    return func(*given, **named).dtype


def _meta(value: Any) -> Any:
    return torch.empty(value.shape, dtype=value.dtype, device="meta") if isinstance(value, torch.Tensor) else value


def _common(values: Sequence[Any]) -> torch.dtype:
    """What torch computes in where the result says nothing of it: comparisons."""
    given = [_meta(v) for v in values]
    return functools.reduce(torch.promote_types, (torch.result_type(given[0], v) for v in given))


def elementwise(function: Scalar, *, compares: bool = False) -> Row:
    """``function(terms, kind, *arguments)`` on each element; numbers among the arguments are terms too."""

    def row(lowering: Lowering, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Symbol:
        dtype = _result(lowering, func, args, kwargs)
        values = [v for v in args if isinstance(v, (torch.Tensor, int, float, bool))]
        inner = _common(values) if compares else dtype
        kind = kind_of(inner, lowering.terms.origin)
        given = [_as(lowering, v, inner) for v in values]
        return lowering.each(functools.partial(function, lowering.terms, kind), dtype, *given)

    return row


def _as(lowering: Lowering, value: Any, dtype: torch.dtype) -> Symbol:
    if not isinstance(value, torch.Tensor):
        return lowering.symbol(torch.tensor(value, dtype=dtype))
    return lowering.cast(lowering.symbol(value), dtype)


def plain(op: str, *, to_bool: bool = False) -> Row:
    def function(terms: Terms, kind: str, *args: int) -> int:
        return terms.make(op, args, BOOL if to_bool else kind)

    return elementwise(function, compares=to_bool)


def swapped(op: str) -> Row:
    return elementwise(lambda terms, kind, a, b: terms.make(op, (b, a), BOOL), compares=True)


def logical(op: str) -> Row:
    """Of numbers too: each is true where it is not zero."""

    def function(terms: Terms, kind: str, *args: int) -> int:
        return terms.make(op, [terms.make("cast", (a,), BOOL) for a in args], BOOL)

    return elementwise(function, compares=True)


def bitwise(op: str) -> Row:
    return elementwise(lambda terms, kind, *args: terms.make(op if kind == BOOL else f"bit_{op}", args, kind))


def scaled(op: str) -> Row:
    """``add`` and ``sub`` with torch's factor ``alpha``."""

    def row(lowering: Lowering, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Symbol:
        dtype = _result(lowering, func, args, kwargs)
        kind = kind_of(dtype, lowering.terms.origin)
        first, second, *rest = args
        alpha = rest[0] if rest else kwargs.get("alpha", 1)
        a, b = _as(lowering, first, dtype), _as(lowering, second, dtype)
        factor = lowering.terms.constant(alpha, kind)
        a, b = (b, a) if op == "rsub" else (a, b)

        def function(x: int, y: int) -> int:
            if op == "rsub":
                return lowering.terms.make("sub", (x, _mul(lowering.terms, kind, y, factor)), kind)
            return lowering.terms.make(op, (x, _mul(lowering.terms, kind, y, factor)), kind)

        return lowering.each(function, dtype, a, b)

    return row


def _mul(terms: Terms, kind: str, x: int, factor: int) -> int:
    return x if terms.value(factor) == 1 else terms.make("mul", (x, factor), kind)


def divided(lowering: Lowering, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Symbol:
    dtype = _result(lowering, func, args, kwargs)
    kind = kind_of(dtype, lowering.terms.origin)
    mode = kwargs.get("rounding_mode")
    a, b = (_as(lowering, v, dtype) for v in args[:2])

    def function(x: int, y: int) -> int:
        terms = lowering.terms
        if mode is None:
            return terms.make("div", (x, y), kind)
        if kind not in REAL:
            return terms.make(f"div_{mode}", (x, y), kind)
        return (
            terms.make(mode, (terms.make("div", (x, y), kind),), kind)
            if mode == "trunc"
            else _floored(terms, kind, x, y)
        )

    return lowering.each(function, dtype, a, b)


def _floored(terms: Terms, kind: str, x: int, y: int) -> int:
    """c10::div_floor_floating (c10/util/generic_math.h)."""
    return terms.make("div_floor", (x, y), kind)


def raised(terms: Terms, kind: str, base: int, exponent: int) -> int:
    """As torch does for an exponent that is one number (aten/src/ATen/native/cpu/PowKernel.cpp)."""
    value = terms.value(exponent)
    if kind in REAL and value is not None:
        one = terms.constant(1.0, kind)
        square = functools.partial(terms.make, "mul", (base, base), kind)
        known: dict[float, Callable[[], int]] = {
            0.5: lambda: terms.make("sqrt", (base,), kind),
            1.0: lambda: base,
            2.0: square,
            3.0: lambda: terms.make("mul", (square(), base), kind),
            -0.5: lambda: terms.make("div", (one, terms.make("sqrt", (base,), kind)), kind),
            -1.0: lambda: terms.make("div", (one, base), kind),
            -2.0: lambda: terms.make("div", (one, square()), kind),
        }
        if value in known:
            return known[value]()
        if value == 0.0:
            return one
    return _powered(terms, kind, base, exponent)


def power(lowering: Lowering, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Symbol:
    """A tensor of exponents is torch's own power for each, whatever stands in it."""
    row = raised if not isinstance(args[1], torch.Tensor) else _powered
    return elementwise(row)(lowering, func, args, kwargs)


def _powered(terms: Terms, kind: str, base: int, exponent: int) -> int:
    return terms.make("pow" if kind in REAL else "pow_int", (base, exponent), kind)


def chosen(lowering: Lowering, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Symbol:
    condition, first, second = args
    dtype = _common([first, second])
    kind = kind_of(dtype, lowering.terms.origin)
    given = [_as(lowering, condition, torch.bool), _as(lowering, first, dtype), _as(lowering, second, dtype)]
    return lowering.each(lambda c, a, b: lowering.terms.make("where", (c, a, b), kind), dtype, *given)


def masked(lowering: Lowering, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Symbol:
    value = args[2]
    of = args[0].dtype
    whole = value if isinstance(value, torch.Tensor) else torch.tensor(value, dtype=of)
    kind = kind_of(of, lowering.terms.origin)
    given = [_as(lowering, args[1], torch.bool), _as(lowering, whole, of), _as(lowering, args[0], of)]
    return lowering.each(lambda c, a, b: lowering.terms.make("where", (c, a, b), kind), of, *given)


def clamped(lowering: Lowering, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Symbol:
    name = func.overloadpacket.__name__
    bounds: list[Any] = [
        args[1] if len(args) > 1 else kwargs.get("min"),
        args[2] if len(args) > 2 else kwargs.get("max"),
    ]
    if name == "clamp_max":
        bounds = [None, args[1] if len(args) > 1 else kwargs.get("max")]
    dtype = _result(lowering, func, args, kwargs)
    kind = kind_of(dtype, lowering.terms.origin)
    found = _as(lowering, args[0], dtype)
    for op, bound in zip(("max", "min"), bounds, strict=True):
        if bound is not None:
            limit = _as(lowering, bound, dtype)
            found = lowering.each(
                lambda x, y, op=op: lowering.terms.make(op, (x, y), kind, ("clamp",)), dtype, found, limit
            )
    return found


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


def reduction(op: str, empty: float | None) -> Row:
    def row(lowering: Lowering, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Symbol:
        dtype = _result(lowering, func, args, kwargs)
        kind = kind_of(dtype, lowering.terms.origin)
        dims = args[1] if len(args) > 1 else kwargs.get("dim")
        keep = bool(args[2] if len(args) > 2 else kwargs.get("keepdim", False))
        terms = lowering.terms

        def fold(numbers: list[int]) -> int:
            if not numbers:
                return terms.constant(empty or 0.0, kind)
            whole = functools.reduce(lambda a, b: terms.make(op, (a, b), kind), numbers)
            count = terms.constant(float(len(numbers)), kind)
            return terms.make("div", (whole, count), kind) if func.overloadpacket.__name__ == "mean" else whole

        return _reduced(_as(lowering, args[0], dtype), dims, keep=keep, fold=fold, dtype=dtype)

    return row


def accumulated(op: str) -> Row:
    def row(lowering: Lowering, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Symbol:
        dtype = _result(lowering, func, args, kwargs)
        kind = kind_of(dtype, lowering.terms.origin)
        ids = _as(lowering, args[0], dtype).ids.movedim(args[1], -1).clone()
        for i in range(1, ids.shape[-1]):
            pairs = zip(ids[..., i - 1].reshape(-1).tolist(), ids[..., i].reshape(-1).tolist(), strict=True)
            made = [lowering.terms.make(op, pair, kind) for pair in pairs]
            ids[..., i] = torch.tensor(made, dtype=torch.int64).reshape(ids.shape[:-1])
        return Symbol(ids.movedim(-1, args[1]), dtype)

    return row


def norm(lowering: Lowering, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Symbol:
    order = args[1] if len(args) > 1 else kwargs.get("ord", 2)
    if float(order) != 2.0:
        raise lowering.refused(f"a norm of order {order}", "the Euclidean norm")
    dtype = args[0].dtype
    kind = kind_of(dtype, lowering.terms.origin)
    terms = lowering.terms

    def fold(numbers: list[int]) -> int:
        squares = [terms.make("mul", (i, i), kind) for i in numbers]
        return terms.make("sqrt", (functools.reduce(lambda a, b: terms.make("add", (a, b), kind), squares),), kind)

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
        return terms.make("add", (_mul(terms, kind, y, beta), _mul(terms, kind, x, alpha)), kind)

    return lowering.each(add, found.dtype, found, lowering.symbol(args[0]))


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


def _solve(
    lowering: Lowering, matrix: torch.Tensor, rights: torch.Tensor, kind: str, *, transposed: bool
) -> torch.Tensor:
    """``matrix`` of shape ``(..., n, n)``, ``rights`` of ``(..., n, m)``, whatever broadcasts."""
    terms = lowering.terms
    n, m = rights.shape[-2:]
    lead = torch.broadcast_shapes(matrix.shape[:-2], rights.shape[:-2])
    whole = matrix.expand(*lead, n, n).reshape(-1, n, n)
    sides = rights.expand(*lead, n, m).reshape(-1, n, m)
    found = torch.empty_like(sides)
    for at in range(len(whole)):
        factors = terms.make(LU, whole[at].reshape(-1).tolist(), kind, (n,))
        for j in range(m):
            given = (factors, *sides[at, :, j].tolist())
            found[at, :, j] = torch.tensor(terms.picks(SOLVED, given, (n, transposed), [kind] * n), dtype=torch.int64)
    return found.reshape(*lead, n, m)


def solved(lowering: Lowering, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Symbol, ...]:
    """``_linalg_solve_ex``: the solution, the factors of the matrix (which are read by ``linalg_lu_solve`` alone),
    pivots, and whether it is singular."""
    matrix, right = lowering.symbol(args[0]), lowering.symbol(args[1])
    if not kwargs.get("left", True):
        raise lowering.refused("a linear system with the matrix at the right", "linalg.solve with left=True")
    dtype = matrix.dtype
    kind = kind_of(dtype, lowering.terms.origin)
    vector = right.ids.ndim == 1 or (right.ids.ndim == matrix.ids.ndim - 1 and right.shape == matrix.shape[:-1])
    sides = right.ids.unsqueeze(-1) if vector else right.ids
    found = _solve(lowering, matrix.ids, sides, kind, transposed=False)
    n = matrix.ids.shape[-1]
    lead = matrix.ids.shape[:-2]
    info = [
        lowering.terms.make("singular", (lowering.terms.make(LU, one.reshape(-1).tolist(), kind, (n,)),), "int32")
        for one in matrix.ids.reshape(-1, n, n)
    ]
    factors = Symbol(matrix.ids.clone(), dtype)
    factors.factorised = matrix.ids
    pivots = lowering.symbol(torch.arange(1, n + 1, dtype=torch.int32).expand(*lead, n))
    said = Symbol(torch.tensor(info, dtype=torch.int64).reshape(lead), torch.int32)
    return Symbol(found[..., 0] if vector else found, dtype), factors, pivots, said


def factored(lowering: Lowering, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Symbol, ...]:
    matrix = lowering.symbol(args[0])
    n = matrix.ids.shape[-1]
    lead = matrix.ids.shape[:-2]
    kind = kind_of(matrix.dtype, lowering.terms.origin)
    terms = lowering.terms
    info = [
        terms.make("singular", (terms.make(LU, one.reshape(-1).tolist(), kind, (n,)),), "int32")
        for one in matrix.ids.reshape(-1, n, n)
    ]
    factors = Symbol(matrix.ids.clone(), matrix.dtype)
    factors.factorised = matrix.ids
    pivots = lowering.symbol(torch.arange(1, n + 1, dtype=torch.int32).expand(*lead, n))
    return factors, pivots, Symbol(torch.tensor(info, dtype=torch.int64).reshape(lead), torch.int32)


def solved_by_factors(lowering: Lowering, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Symbol:
    factors, _, right = args
    if not isinstance(factors, Symbol) or factors.factorised is None or not kwargs.get("left", True):
        raise lowering.refused("linalg_lu_solve of factors that are not the graph's own")
    kind = kind_of(factors.dtype, lowering.terms.origin)
    transposed = bool(kwargs.get("adjoint", False))
    return Symbol(
        _solve(lowering, factors.factorised, lowering.symbol(right).ids, kind, transposed=transposed), factors.dtype
    )


def inverted(lowering: Lowering, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    matrix = lowering.symbol(args[0])
    n = matrix.ids.shape[-1]
    unit = lowering.symbol(torch.eye(n, dtype=matrix.dtype))
    kind = kind_of(matrix.dtype, lowering.terms.origin)
    found = Symbol(_solve(lowering, matrix.ids, unit.ids, kind, transposed=False), matrix.dtype)
    info = lowering.symbol(torch.zeros(matrix.ids.shape[:-2], dtype=torch.int32))
    return (found, info) if func.overloadpacket.__name__ == "linalg_inv_ex" else found


def converted(lowering: Lowering, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Symbol:
    return lowering.cast(
        lowering.symbol(args[0]), _result(lowering, func, args, {k: v for k, v in kwargs.items() if k != "device"})
    )


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


def filled(lowering: Lowering, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Symbol:
    """``ones_like`` and its kin: shapes and dtypes alone are read."""
    whole = torch.empty(args[0].shape, dtype=args[0].dtype)
    return lowering.symbol(func(whole, *args[1:], **{k: v for k, v in kwargs.items() if k != "device"}))


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


def read_now(lowering: Lowering, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    raise lowering.refused("a number that is read while the model runs", "numbers that stay in tensors")


def _reciprocal(terms: Terms, kind: str, x: int) -> int:
    return terms.make("div", (terms.constant(1.0, kind), x), kind)


def _sigmoid(terms: Terms, kind: str, x: int) -> int:
    one = terms.constant(1.0, kind)
    return terms.make(
        "div", (one, terms.make("add", (one, terms.make("exp", (terms.make("neg", (x,), kind),), kind)), kind)), kind
    )


def _relu(terms: Terms, kind: str, x: int) -> int:
    """Flat at 0, as torch's own derivative of it."""
    zero = terms.constant(0, kind)
    return terms.make("where", (terms.make("le", (x, zero), BOOL), zero, x), kind)


def _tests(op: str) -> Row:
    return elementwise(lambda terms, kind, x: terms.make(op, (x,), BOOL), compares=True)


ALONE = (
    "neg", "abs", "sqrt", "exp", "log", "log2", "log10", "log1p", "expm1", "sin", "cos", "tan", "asin", "acos", "atan",
    "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "floor", "ceil", "trunc", "round", "sign", "erf", "erfc", "exp2",
    "lgamma",
)  # fmt: skip
ROWS: dict[str, Row] = {
    **{name: plain(name) for name in ALONE},
    "sgn": plain("sign"),
    "reciprocal": elementwise(_reciprocal),
    "rsqrt": elementwise(lambda t, k, x: _reciprocal(t, k, t.make("sqrt", (x,), k))),
    "square": elementwise(lambda t, k, x: t.make("mul", (x, x), k)),
    "sigmoid": elementwise(_sigmoid),
    "relu": elementwise(_relu),
    "mul": plain("mul"),
    "multiply": plain("mul"),
    "add": scaled("add"),
    "sub": scaled("sub"),
    "rsub": scaled("rsub"),
    "div": divided,
    "floor_divide": elementwise(_floored),
    "remainder": plain("remainder"),
    "fmod": plain("fmod"),
    "pow": power,
    "atan2": plain("atan2"),
    "hypot": plain("hypot"),
    "copysign": plain("copysign"),
    "maximum": plain("max"),
    "minimum": plain("min"),
    "fmax": plain("fmax"),
    "fmin": plain("fmin"),
    "clamp": clamped,
    "clamp_min": clamped,
    "clamp_max": clamped,
    "lt": plain("lt", to_bool=True),
    "le": plain("le", to_bool=True),
    "gt": swapped("lt"),
    "ge": swapped("le"),
    "eq": plain("eq", to_bool=True),
    "ne": plain("ne", to_bool=True),
    "logical_and": logical("and"),
    "logical_or": logical("or"),
    "logical_xor": logical("xor"),
    "logical_not": logical("not"),
    "bitwise_and": bitwise("and"),
    "bitwise_or": bitwise("or"),
    "bitwise_xor": bitwise("xor"),
    "bitwise_not": elementwise(lambda t, k, x: t.make("not" if k == BOOL else "bit_not", (x,), k)),
    "isnan": _tests("isnan"),
    "isinf": _tests("isinf"),
    "isfinite": _tests("isfinite"),
    "where": chosen,
    "masked_fill": masked,
    "sum": reduction("add", 0.0),
    "mean": reduction("add", math.nan),
    "prod": reduction("mul", 1.0),
    "amax": reduction("max", None),
    "amin": reduction("min", None),
    "cumsum": accumulated("add"),
    "cumprod": accumulated("mul"),
    "linalg_vector_norm": norm,
    "mm": multiplied,
    "bmm": multiplied,
    "mv": multiplied,
    "dot": multiplied,
    "vdot": multiplied,
    "addmm": multiplied,
    "addmv": multiplied,
    "baddbmm": multiplied,
    "linalg_cross": cross,
    "_linalg_solve_ex": solved,
    "linalg_lu_factor_ex": factored,
    "linalg_lu_solve": solved_by_factors,
    "linalg_inv_ex": inverted,
    "_to_copy": converted,
    "to": converted,
    "searchsorted": searched,
    "bucketize": searched,
    "ones_like": filled,
    "full_like": filled,
    "empty_like": filled,
    "new_ones": filled,
    "new_full": filled,
    "new_empty": filled,
    "index_put": put,
    "_unsafe_index_put": put,
    "_local_scalar_dense": read_now,
    "is_nonzero": read_now,
}


def _any(op: str) -> Row:
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


ROWS |= {"any": _any("or"), "all": _any("and")}

"""Lowering rules of what orders numbers: extrema with their places, sorted numbers."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence

import torch

from exporter.backends.c_kernel.expression_graph import BOOL, I64, Expr, where
from exporter.backends.c_kernel.symbolic_tensor import OperatorCall, SymbolicTensor, lowers

# Longer rows are not sorted: the comparisons grow with the square.
LONGEST = 32
# A number, and its place in the row that is ordered.
Placed = tuple[Expr, Expr]
Row = Sequence[Placed]


def _is_nan_alone(a: Expr, b: Expr) -> Expr | None:
    """Return whether ``a`` is NaN and ``b`` is not; None for numbers that are never NaN."""
    if not a.dtype.startswith("float"):
        return None
    return a.apply("isnan", dtype=BOOL).apply("and", b.apply("isnan", dtype=BOOL).apply("not", dtype=BOOL), dtype=BOOL)


def _either(condition: Expr, other: Expr | None) -> Expr:
    return condition if other is None else condition.apply("or", other, dtype=BOOL)


def _is_less(a: Expr, b: Expr) -> Expr:
    """Return whether ``a`` is less than ``b``; NaN is greater than all others."""
    return _either(a < b, _is_nan_alone(b, a))


def _choose(condition: Expr, first: Placed, second: Placed) -> Placed:
    return where(condition, first[0], second[0]), where(condition, first[1], second[1])


def _sort_row(row: Row, *, descending: bool) -> Row:
    """Sort a row by exchanges of neighbours, which keep the order of equal numbers.

    Odd-even transposition: Knuth, The Art of Computer Programming 3, 2nd edition, section 5.3.4."""
    ordered = list(row)
    for phase in range(len(ordered)):
        for i in range(phase % 2, len(ordered) - 1, 2):
            a, b = ordered[i : i + 2]
            is_wrong = _is_less(a[0], b[0]) if descending else _is_less(b[0], a[0])
            ordered[i : i + 2] = [_choose(is_wrong, b, a), _choose(is_wrong, a, b)]
    return ordered


def find_extremum(row: Row, *, is_max: bool) -> Row:
    """Return the largest or the least, the first of equal ones; NaN is both."""

    def fold(best: Placed, x: Placed) -> Placed:
        is_better = best[0] < x[0] if is_max else x[0] < best[0]
        return _choose(_either(is_better, _is_nan_alone(x[0], best[0])), x, best)

    return [functools.reduce(fold, row)]


def _order_rows(
    call: OperatorCall, symbol: SymbolicTensor, dim: int, order: Callable[[Row], Row], kept: int
) -> tuple[SymbolicTensor, SymbolicTensor]:
    """Return numbers and places after ``order`` of each row along ``dim``, which leaves ``kept`` of them."""
    ids = symbol.ids.movedim(dim, -1) if symbol.ids.ndim else symbol.ids.reshape(1)
    size = ids.shape[-1]
    places = [Expr(call.graph, call.graph.add_constant(i, I64)) for i in range(size)]
    rows = [
        order([(Expr(call.graph, i), p) for i, p in zip(row, places, strict=True)])
        for row in ids.reshape(math.prod(ids.shape[:-1]), size).tolist()
    ]
    results = []
    for part, dtype in enumerate((symbol.dtype, torch.int64)):
        nodes = torch.tensor([[pair[part].index for pair in row] for row in rows], dtype=torch.int64)
        shaped = nodes.reshape(*ids.shape[:-1], kept)
        placed = shaped.movedim(-1, dim).contiguous() if symbol.ids.ndim else shaped.reshape(())
        results.append(SymbolicTensor(placed, dtype))
    return results[0], results[1]


def drop_dims(symbol: SymbolicTensor, dims: Sequence[int]) -> SymbolicTensor:
    """Return a tensor without these dimensions, whose size is 1."""
    gone = {d % max(symbol.ids.ndim, 1) for d in dims}
    kept = [size for d, size in enumerate(symbol.ids.shape) if d not in gone]
    return SymbolicTensor(symbol.ids.reshape(kept), symbol.dtype)


@lowers("max", "min")
def lower_extremum(call: OperatorCall) -> torch.Tensor | tuple[SymbolicTensor, ...]:
    """Lower ``max`` and ``min`` along a dimension; over all numbers they are ``amax`` and ``amin``."""
    if call.func._overloadname != "dim":
        with call.dispatch:
            return (torch.amax if call.name == "max" else torch.amin)(call.args[0])
    order = functools.partial(find_extremum, is_max=call.name == "max")
    dim, keepdim = call.args[1], call.argument(2, "keepdim", False)
    results = _order_rows(call, call.dispatch.to_symbol(call.args[0]), dim, order, 1)
    return tuple(result if keepdim else drop_dims(result, [dim]) for result in results)


def _follow_extremum(row: Row, *, is_max: bool) -> Row:
    """Return the largest or the least so far, the last of equal ones; NaN stays."""

    def step(best: Placed, x: Placed) -> Placed:
        is_worse = x[0] < best[0] if is_max else best[0] < x[0]
        return _choose(_either(is_worse, _is_nan_alone(best[0], x[0])), best, x)

    return list(itertools.accumulate(row, step))


@lowers("cummax", "cummin")
def lower_cumulative_extremum(call: OperatorCall) -> tuple[SymbolicTensor, ...]:
    """Lower the extrema of the first numbers along a dimension, with their places."""
    symbol = call.dispatch.to_symbol(call.args[0])
    size = symbol.ids.shape[call.args[1]] if symbol.ids.ndim else 1
    return _order_rows(
        call, symbol, call.args[1], functools.partial(_follow_extremum, is_max=call.name == "cummax"), size
    )


@lowers("argmax", "argmin")
def lower_place(call: OperatorCall) -> SymbolicTensor:
    """Lower ``argmax`` and ``argmin``, along a dimension or over all numbers."""
    symbol, dim = call.dispatch.to_symbol(call.args[0]), call.argument(1, "dim")
    keepdim, order = call.argument(2, "keepdim", False), functools.partial(find_extremum, is_max=call.name == "argmax")
    if dim is not None:
        place = _order_rows(call, symbol, dim, order, 1)[1]
        return place if keepdim else drop_dims(place, [dim])
    _, place = _order_rows(call, SymbolicTensor(symbol.ids.reshape(-1), symbol.dtype), 0, order, 1)
    return SymbolicTensor(place.ids.reshape([1] * symbol.ids.ndim if keepdim else []), place.dtype)


@lowers("sort")
def lower_sort(call: OperatorCall) -> tuple[SymbolicTensor, ...]:
    """Lower sorted numbers with their places; equal ones keep their order."""
    is_stable = call.func._overloadname == "stable"
    dim, descending = call.argument(1 + is_stable, "dim", -1), call.argument(2 + is_stable, "descending", False)
    order = functools.partial(_sort_row, descending=descending)
    symbol = call.dispatch.to_symbol(call.args[0])
    return _order_rows(call, symbol, dim, order, _get_row_size(call, symbol, dim))


def _get_row_size(call: OperatorCall, symbol: SymbolicTensor, dim: int) -> int:
    """Return the length of the rows along a dimension, which are to be sorted; raise an error for long ones."""
    size = symbol.ids.shape[dim] if symbol.ids.ndim else 1
    if size > LONGEST:
        expected = f"rows of at most {LONGEST} numbers"
        raise call.dispatch.unsupported_error(f"aten::{call.name} along {size} numbers", expected)
    return size


def _find_median(row: Row) -> Row:
    """Return the lower median, or the first NaN; of equal numbers the place of any one is right."""
    ordered = _sort_row(row, descending=False)
    middle = ordered[(len(row) - 1) // 2]
    if not middle[0].dtype.startswith("float"):
        return [middle]
    (last,) = find_extremum(row, is_max=True)
    return [_choose(last[0].apply("isnan", dtype=BOOL), last, middle)]


@lowers("median")
def lower_median(call: OperatorCall) -> SymbolicTensor | tuple[SymbolicTensor, ...]:
    """Lower the lower median, of all numbers, or along a dimension with a place where it is."""
    symbol = call.dispatch.to_symbol(call.args[0])
    if call.func._overloadname == "dim":
        dim, keepdim = call.args[1], call.argument(2, "keepdim", False)
        _get_row_size(call, symbol, dim)
        results = _order_rows(call, symbol, dim, _find_median, 1)
        return tuple(result if keepdim else drop_dims(result, [dim]) for result in results)
    numbers = SymbolicTensor(symbol.ids.reshape(-1), symbol.dtype)
    _get_row_size(call, numbers, 0)
    value, _ = _order_rows(call, numbers, 0, _find_median, 1)
    # All numbers that are the median share the derivative, which one of them does not know.
    share = lambda x: x.apply("max", x, extra=("of many",))  # noqa: E731
    return call.apply(share, symbol.dtype, SymbolicTensor(value.ids.reshape(()), value.dtype))

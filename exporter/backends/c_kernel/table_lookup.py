"""Reads of a table at an index that depends on the data, and searches of an index by a number.

A long table that is the same for all elements stays a table: its number is read in place, its index is found by
bisection. In others each number is a choice, which compilers vectorise."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Sequence

from exporter.backends.c_kernel.expression_graph import BOOL, F64, READ, SEARCHED, Expr, ExprGraph, where
from exporter.backends.c_kernel.schedule import is_uniform

# Measured for a curve through the numbers in a batch of 1,000: tables take 0.75 of the time of choices for 9 numbers,
# 0.56 for 17, 0.06 for 129.
SHORT = 8


def _is_table(graph: ExprGraph, numbers: Sequence[int]) -> bool:
    dtypes = {graph[i].dtype for i in numbers}
    return len(numbers) > SHORT and len(dtypes) == 1 and is_uniform(graph, numbers)


def read_table(graph: ExprGraph, numbers: Sequence[int], index: int) -> int:
    """Return the number at ``index``; out of range, which torch refuses, the nearest."""
    position, value = Expr(graph, index), graph.constant_value(index)
    if len(set(numbers)) == 1:
        return numbers[0]
    if value is not None:
        return numbers[min(max(int(value), 0), len(numbers) - 1)]
    if _is_table(graph, numbers):
        return graph.add(READ, (_clamp(position, len(numbers)).index, *numbers), graph[numbers[0]].dtype)
    result = Expr(graph, numbers[-1])
    for i in range(len(numbers) - 2, -1, -1):
        result = where(position <= i, Expr(graph, numbers[i]), result)
    return result.index


def read_sparse_table(graph: ExprGraph, numbers: Sequence[int | None], index: int) -> int:
    """Return the number at ``index``, which is in range; 0 where there is none."""
    entries = [(position, i) for position, i in enumerate(numbers) if i is not None]
    result = Expr(graph, entries[0][1]).match(0.0)
    if len(entries) > SHORT:
        return read_table(graph, [result.index if i is None else i for i in numbers], index)
    for position, i in entries:
        result = where(Expr(graph, index).equals(position), Expr(graph, i), result)
    return result.index


def read_multi_index(graph: ExprGraph, numbers: Sequence[int], indices: Sequence[int], sizes: Sequence[int]) -> int:
    """Return the number at one index per dimension of a flattened table; a negative index counts from the end."""
    positions = [wrap_index(Expr(graph, i), size) for i, size in zip(indices, sizes, strict=True)]
    if _is_table(graph, numbers):
        flat = positions[0].match(0)
        for position, size in zip(positions, sizes, strict=True):
            flat = flat * size + _clamp(position, size)
        return read_table(graph, numbers, flat.index)
    rows = [numbers]
    for size in sizes:
        rows = [row[i : i + len(row) // size] for row in rows for i in range(0, len(row), len(row) // size)]
    remaining = [row[0] for row in rows]
    for position, size in zip(reversed(positions), reversed(sizes), strict=True):
        starts = range(0, len(remaining), size)
        remaining = [read_table(graph, remaining[i : i + size], position.index) for i in starts]
    return remaining[0]


def _clamp(index: Expr, size: int) -> Expr:
    return index.apply("max", 0).apply("min", size - 1)


def wrap_index(index: Expr, size: int) -> Expr:
    """Return an index from the start; a negative one counts from the end."""
    return where(index < 0, index + size, index)


def count_below(graph: ExprGraph, number: int, bounds: Sequence[int], index_dtype: str, *, right: bool) -> int:
    """Return how many ``bounds`` are below ``number``, or equal to it with ``right``; NaN is behind all.

    Bounds should be sorted; among others torch's bisection ends somewhere, and so does this one."""
    if graph[number].dtype == F64 and _is_table(graph, bounds):
        return graph.add(SEARCHED, (number, *bounds), index_dtype, (right,))
    x = Expr(graph, number)
    is_above = [x < Expr(graph, b) if right else x <= Expr(graph, b) for b in bounds]
    constants = [graph.constant_value(b) for b in bounds]
    if bounds and all(c is not None for c in constants) and all(a <= b for a, b in itertools.pairwise(constants)):
        return functools.reduce(operator.add, [a.apply("not", dtype=BOOL).cast(index_dtype) for a in is_above]).index

    def bisect(start: int, end: int) -> Expr:
        if start == end:
            return Expr(graph, graph.add_constant(start, index_dtype))
        middle = start + (end - start) // 2
        return where(is_above[middle], bisect(start, middle), bisect(middle + 1, end))

    return bisect(0, len(bounds)).index

"""Reads of a table at an index that depends on the data, and searches of an index by a number.

A long table that is the same for all elements stays a table: its number is read in place, its index is found by
bisection. In others each number is a choice, which compilers vectorise."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from exporter.backends.c_kernel.expression_graph import BOOL, F64, READ, SEARCHED, ExprGraph
from exporter.backends.c_kernel.schedule import is_uniform

# Measured for a curve through the numbers in a batch of 1,000: tables take 0.75 of the time of choices for 9 numbers,
# 0.56 for 17, 0.06 for 129.
SHORT = 8


def _is_table(graph: ExprGraph, numbers: Sequence[int]) -> bool:
    dtypes = {graph[i].dtype for i in numbers}
    return len(numbers) > SHORT and len(dtypes) == 1 and is_uniform(graph, numbers)


def read_table(graph: ExprGraph, numbers: Sequence[int], index: int) -> int:
    """Return the number at ``index``; out of range, which torch refuses, the nearest."""
    dtype, index_dtype = graph[numbers[0]].dtype, graph[index].dtype
    value = graph.constant_value(index)
    if len(set(numbers)) == 1:
        return numbers[0]
    if value is not None:
        return numbers[min(max(int(value), 0), len(numbers) - 1)]
    if _is_table(graph, numbers):
        return graph.add(READ, (clamp_index(graph, index, len(numbers)), *numbers), dtype)
    result = numbers[-1]
    for position in range(len(numbers) - 2, -1, -1):
        matches = graph.add("le", (index, graph.add_constant(position, index_dtype)), BOOL)
        result = graph.add("where", (matches, numbers[position], result), dtype)
    return result


def read_sparse_table(graph: ExprGraph, numbers: Sequence[int | None], index: int) -> int:
    """Return the number at ``index``, which is in range; 0 where there is none."""
    dtype = next(graph[i].dtype for i in numbers if i is not None)
    zero, index_dtype = graph.add_constant(0.0, dtype), graph[index].dtype
    entries = [(position, i) for position, i in enumerate(numbers) if i is not None]
    if len(entries) > SHORT:
        return read_table(graph, [zero if i is None else i for i in numbers], index)
    result = zero
    for position, i in entries:
        matches = graph.add("eq", (index, graph.add_constant(position, index_dtype)), BOOL)
        result = graph.add("where", (matches, i, result), dtype)
    return result


def read_multi_index(graph: ExprGraph, numbers: Sequence[int], indices: Sequence[int], sizes: Sequence[int]) -> int:
    """Return the number at one index per dimension of a flattened table; a negative index counts from the end."""
    indices = [_wrap_index(graph, p, size) for p, size in zip(indices, sizes, strict=True)]
    if _is_table(graph, numbers):
        flat = graph.add_constant(0, graph[indices[0]].dtype)
        for index, size in zip(indices, sizes, strict=True):
            dtype = graph[index].dtype
            flat = graph.add("mul", (flat, graph.add_constant(size, dtype)), dtype)
            flat = graph.add("add", (flat, clamp_index(graph, index, size)), dtype)
        return read_table(graph, numbers, flat)
    rows = [numbers]
    for size in sizes:
        rows = [row[i : i + len(row) // size] for row in rows for i in range(0, len(row), len(row) // size)]
    numbers_left = [row[0] for row in rows]
    for index, size in zip(reversed(indices), reversed(sizes), strict=True):
        numbers_left = [read_table(graph, numbers_left[i : i + size], index) for i in range(0, len(numbers_left), size)]
    return numbers_left[0]


def clamp_index(graph: ExprGraph, index: int, size: int) -> int:
    """Return the index clamped to a dimension."""
    dtype = graph[index].dtype
    lower_bounded = graph.add("max", (index, graph.add_constant(0, dtype)), dtype)
    return graph.add("min", (lower_bounded, graph.add_constant(size - 1, dtype)), dtype)


def _wrap_index(graph: ExprGraph, index: int, size: int) -> int:
    dtype = graph[index].dtype
    negative = graph.add("lt", (index, graph.add_constant(0, dtype)), BOOL)
    wrapped = graph.add("add", (index, graph.add_constant(size, dtype)), dtype)
    return graph.add("where", (negative, wrapped, index), dtype)


def count_below(graph: ExprGraph, number: int, bounds: Sequence[int], index_dtype: str, *, right: bool) -> int:
    """Return how many sorted ``bounds`` are below ``number``, or equal to it with ``right``; NaN is behind all."""
    if graph[number].dtype == F64 and _is_table(graph, bounds):
        return graph.add(SEARCHED, (number, *bounds), index_dtype, (right,))
    above = [graph.add("lt" if right else "le", (number, b), BOOL) for b in bounds]
    counts = [graph.add("cast", (graph.add("not", (a,), BOOL),), index_dtype) for a in above]
    return functools.reduce(lambda a, b: graph.add("add", (a, b), index_dtype), counts)

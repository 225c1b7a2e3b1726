"""Numbers that are read at a place that depends on the data, and places that are found by a number.

A long table that is the same for all elements stays a table: its number is read where it stands, its place is found by
bisection. In others each number is a choice, which compilers make vectors of.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from exporter.backends.c_kernel.expression_graph import BOOL, F64, READ, SEARCHED, Terms
from exporter.backends.c_kernel.schedule import alike

# Measured, of a curve through the numbers in a batch of 1,000: tables take 0.75 of the time of choices for 9 numbers,
# 0.56 for 17, 0.06 for 129.
SHORT = 8


def _stays(terms: Terms, numbers: Sequence[int]) -> bool:
    kinds = {terms[i].kind for i in numbers}
    return len(numbers) > SHORT and len(kinds) == 1 and alike(terms, numbers)


def read(terms: Terms, numbers: Sequence[int], place: int) -> int:
    """The number at ``place``; where that is outside, which torch refuses, the nearest."""
    kind, counted = terms[numbers[0]].kind, terms[place].kind
    value = terms.value(place)
    if len(set(numbers)) == 1:
        return numbers[0]
    if value is not None:
        return numbers[min(max(int(value), 0), len(numbers) - 1)]
    if _stays(terms, numbers):
        return terms.make(READ, (nearest(terms, place, len(numbers)), *numbers), kind)
    found = numbers[-1]
    for at in range(len(numbers) - 2, -1, -1):
        here = terms.make("le", (place, terms.constant(at, counted)), BOOL)
        found = terms.make("where", (here, numbers[at], found), kind)
    return found


def read_sparse(terms: Terms, numbers: Sequence[int | None], place: int) -> int:
    """The number at ``place``, which is not outside; 0 where there is none."""
    kind = next(terms[i].kind for i in numbers if i is not None)
    zero, counted = terms.constant(0.0, kind), terms[place].kind
    given = [(at, i) for at, i in enumerate(numbers) if i is not None]
    if len(given) > SHORT:
        return read(terms, [zero if i is None else i for i in numbers], place)
    found = zero
    for at, i in given:
        here = terms.make("eq", (place, terms.constant(at, counted)), BOOL)
        found = terms.make("where", (here, i, found), kind)
    return found


def read_at(terms: Terms, numbers: Sequence[int], places: Sequence[int], sizes: Sequence[int]) -> int:
    """The number at a place in each dimension of a table that is flattened; a negative one counts from the end."""
    places = [_from_start(terms, p, size) for p, size in zip(places, sizes, strict=True)]
    if _stays(terms, numbers):
        flat = terms.constant(0, terms[places[0]].kind)
        for place, size in zip(places, sizes, strict=True):
            kind = terms[place].kind
            flat = terms.make("mul", (flat, terms.constant(size, kind)), kind)
            flat = terms.make("add", (flat, nearest(terms, place, size)), kind)
        return read(terms, numbers, flat)
    rows = [numbers]
    for size in sizes:
        rows = [row[i : i + len(row) // size] for row in rows for i in range(0, len(row), len(row) // size)]
    found = [row[0] for row in rows]
    for place, size in zip(reversed(places), reversed(sizes), strict=True):
        found = [read(terms, found[i : i + size], place) for i in range(0, len(found), size)]
    return found[0]


def nearest(terms: Terms, place: int, size: int) -> int:
    kind = terms[place].kind
    above = terms.make("max", (place, terms.constant(0, kind)), kind)
    return terms.make("min", (above, terms.constant(size - 1, kind)), kind)


def _from_start(terms: Terms, place: int, size: int) -> int:
    kind = terms[place].kind
    below = terms.make("lt", (place, terms.constant(0, kind)), BOOL)
    wrapped = terms.make("add", (place, terms.constant(size, kind)), kind)
    return terms.make("where", (below, wrapped, place), kind)


def below(terms: Terms, number: int, bounds: Sequence[int], counted: str, *, right: bool) -> int:
    """How many of the ordered ``bounds`` are below ``number``, or equal to it where ``right``; NaN is behind all."""
    if terms[number].kind == F64 and _stays(terms, bounds):
        return terms.make(SEARCHED, (number, *bounds), counted, (right,))
    above = [terms.make("lt" if right else "le", (number, b), BOOL) for b in bounds]
    counts = [terms.make("cast", (terms.make("not", (a,), BOOL),), counted) for a in above]
    return functools.reduce(lambda a, b: terms.make("add", (a, b), counted), counts)

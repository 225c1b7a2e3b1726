"""Numbers that are copied from rows to rows: one by one, and in a loop where many stand one behind the other.

A Jacobian of a hundred unknowns has ten thousand numbers, most of them zeros: a statement for each takes a compiler a
minute.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence

from exporter.backends.c_kernel.frame_layout import ARRAYS, TYPES

# Fewer numbers than this are written one by one.
MANY = 8
_ROW = re.compile(r"(f->\w)\[(\d+)\]\[l\]")
_KINDS = {array: TYPES[kind] for kind, array in ARRAYS.items()}


def copied(array: str, rows: Sequence[int], values: Sequence[str]) -> str:
    """Statements that put ``values``, of lane ``l``, into ``rows`` of ``array``. No row is also read."""
    alone: list[str] = []
    loops: list[str] = []
    for first, run in _runs(array, rows, values):
        if len(run) < MANY:
            lines = [(f"f->{array}[{row}][l]", value) for row, value in enumerate(run, first)]
            alone += [f"    {to} = {value};\n" for to, value in lines if to != value]
        elif run[0] != f"f->{array}[{first}][l]":
            loops.append(_loop(array, first, run))
    if alone:
        loops.insert(0, f"  TF_SIMD\n  for (int l = 0; l < TF_NOW; l++) {{\n{''.join(alone)}  }}\n")
    return "".join(loops)


def _runs(array: str, rows: Sequence[int], values: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
    """Rows one behind the other that take the same value, or values that stand in as many rows of one array."""

    def key(at: int) -> tuple[object, ...]:
        row, found = rows[at], _ROW.fullmatch(values[at])
        source = (found[1], int(found[2]) - row) if found else values[at]
        return row - at, source

    for _, group in itertools.groupby(range(len(rows)), key):
        places = list(group)
        yield rows[places[0]], [values[at] for at in places]


def _loop(array: str, first: int, values: Sequence[str]) -> str:
    found = _ROW.fullmatch(values[0])
    lines = [f"{_KINDS[array]} (*const to)[TF_LANES] = &f->{array}[{first}];"]
    if found:
        lines.append(f"{_KINDS[found[1][-1]]} (*const from)[TF_LANES] = &{found[1]}[{found[2]}];")
    lines += [
        f"for (int k = 0; k < {len(values)}; k++)",
        "  TF_SIMD",
        f"  for (int l = 0; l < TF_NOW; l++) to[k][l] = {'from[k][l]' if found else values[0]};",
    ]
    return "  {\n" + "".join(f"    {line}\n" for line in lines) + "  }\n"

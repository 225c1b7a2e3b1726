"""How the numbers of a kernel lie: lanes of elements, rows of them by kind, structures in C."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import jinja2

from exporter.backends.c_kernel.c_expressions import TYPES

TEMPLATES = jinja2.Environment(
    loader=jinja2.PackageLoader("exporter.backends.c_kernel"),
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
    undefined=jinja2.StrictUndefined,
)
# Elements that are computed together: two registers of AVX-512, so that one waits for its results while the other is at
# work. Measured: 0.9 of the time that 8 take, in Newton loops and in explicit models.
LANES = 16
# Newton's systems up to this size are unrolled. Measured, in times of a loop: 0.6 for 7 unknowns, 0.8 for 8, 0.9 for
# 12, where compilers take longer over them.
UNROLLED = 8
# Above this many scalars a method has no second body for one element: it would double the time of the compiler.
SMALL = 6_000
# Statements of one function that computes what is uniform.
PREPARED = 500
ARRAYS = {"float64": "d", "float32": "f", "int64": "i", "int32": "j", "bool": "b"}


@dataclass
class Emitted:
    """One method: its functions, its frame and what is uniform, as text; where outputs and inputs stand."""

    name: str
    text: str
    prepare: str
    frame: str
    uniform: str
    operations: int
    rows: Mapping[str, int]
    # Numbers of what is uniform, by kind; the parameters of which tables are read in the caller's memory, and how many
    # tables those are.
    same: Mapping[str, int]
    held: tuple[str, ...]
    pointers: int
    inputs: Mapping[str, int]
    outputs: tuple[int, ...]
    parameters: tuple[str, ...]
    statuses: tuple[str, ...]
    holds_environment: bool
    helpers: tuple[str, ...]
    # Sizes of the systems that are.
    unrolled: tuple[int, ...]
    small: bool


def comment(text: str) -> str:
    """What can stand in a comment in C."""
    plain = re.sub(r"[^\x20-\x7e]", "?", text)
    return plain.replace("*/", "* /").replace("/*", "/ *").replace("??", "? ?")


def struct(name: str, counts: Mapping[str, int], *, lanes: bool, pointers: int = 0) -> str:
    rows = [f"  const void *t[{pointers}];"] if pointers else []
    rows += [
        f"  {TYPES[kind]} {ARRAYS[kind]}[{count}]{'[TF_LANES]' if lanes else ''};"
        for kind, count in counts.items()
        if count
    ]
    body = "\n".join(rows) if rows else "  char nothing;"
    return f"struct {name} {{\n{body}\n}};\n"


def prepared(method: str, lines: Sequence[str]) -> str:
    """The function that fills what is uniform; of many lines as functions that it calls, for the compiler's sake."""
    given = f"(struct {method}_uniform *restrict g, const void *const *restrict parameters)"
    parts = [lines[i : i + PREPARED] for i in range(0, len(lines), PREPARED)]
    text, calls = "", list(lines)
    if len(parts) > 1:
        calls = [f"  {method}_prepare_{k}(g, parameters);" for k in range(len(parts))]
        for k, part in enumerate(parts):
            body = "".join(f"{line}\n" for line in part)
            text += f"TF_APART static void {method}_prepare_{k}{given} {{\n{body}  (void)parameters;\n}}\n"
    body = "".join(f"{line}\n" for line in calls)
    return f"{text}static void {method}_prepare{given} {{\n{body}  (void)g;\n  (void)parameters;\n}}\n"

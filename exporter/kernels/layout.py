"""How the numbers of a kernel lie: lanes of elements, rows of them by kind, structures in C."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import jinja2

from exporter.kernels.expressions import TYPES

TEMPLATES = jinja2.Environment(
    loader=jinja2.PackageLoader("exporter.kernels"),
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
    # Numbers of what is uniform, by kind.
    same: Mapping[str, int]
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

"""Memory layout of a kernel: lanes of elements, registers by dtype, C structures; the environment of the templates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from exporter.backends.c_kernel.c_expressions import TYPES
from exporter.common.templating import make_templates

TEMPLATES = make_templates("exporter.backends.c_kernel")
# Elements that are computed together: two registers of AVX-512, so that one works while the other waits for its
# results. Measured: 0.9 of the time with 8, in Newton loops and in explicit models.
LANES = 16
# Newton's systems up to this size are unrolled. Measured, as a fraction of a loop's time: 0.6 for 7 unknowns, 0.8 for
# 8, 0.9 for 12, which compilers take longer over.
UNROLLED = 8
# Above this many scalars a method has no second body for one element: it would double the time of the compiler.
SMALL = 6_000
# Above this many scalars a compiler for GPUs is to leave the functions of a method apart.
INLINED = 4_000
# Statements of one function that computes uniform values.
PREPARED = 500
ARRAYS = {"float64": "d", "float32": "f", "int64": "i", "int32": "j", "bool": "b"}


@dataclass
class MethodCode:
    """C text of one method (functions, frame, uniform values), and the registers of its inputs and outputs."""

    name: str
    text: str
    prepare: str
    frame: str
    uniform: str
    operations: int
    register_counts: Mapping[str, int]
    # Uniform values by dtype; the parameters whose tables are read in the caller's memory, and the number of those
    # tables.
    uniform_counts: Mapping[str, int]
    table_parameters: tuple[str, ...]
    table_count: int
    inputs: Mapping[str, int]
    outputs: tuple[int, ...]
    parameters: tuple[str, ...]
    statuses: tuple[str, ...]
    holds_environment: bool
    helpers: tuple[str, ...]
    # Sizes of the unrolled systems.
    unrolled_sizes: tuple[int, ...]
    small: bool

    @property
    def is_inlined_on_gpu(self) -> bool:
        """Return whether a thread of a GPU has the method in one function, and the frame in registers."""
        return self.operations <= INLINED


def format_struct(name: str, counts: Mapping[str, int], *, lanes: bool, pointers: int = 0) -> str:
    """Return the declaration of a C structure with one array per dtype."""
    members = [f"  const void *t[{pointers}];"] if pointers else []
    size = "[TF_LANES]" if lanes else ""
    members += [f"  {TYPES[dtype]} {ARRAYS[dtype]}[{count}]{size};" for dtype, count in counts.items() if count]
    body = "\n".join(members) if members else "  char nothing;"
    return f"struct {name} {{\n{body}\n}};\n"


def emit_prepare(method: str, lines: Sequence[str]) -> str:
    """Return the function that fills the uniform values; many lines are split, for the compiler's sake."""
    signature = f"(struct {method}_uniform *restrict g, const void *const *restrict parameters)"
    parts = [lines[i : i + PREPARED] for i in range(0, len(lines), PREPARED)]
    text, calls = "", list(lines)
    if len(parts) > 1:
        calls = [f"  {method}_prepare_{k}(g, parameters);" for k in range(len(parts))]
        for k, part in enumerate(parts):
            body = "".join(f"{line}\n" for line in part)
            text += f"TF_APART TF_FUNCTION void {method}_prepare_{k}{signature} {{\n{body}  (void)parameters;\n}}\n"
    body = "".join(f"{line}\n" for line in calls)
    return f"{text}TF_FUNCTION void {method}_prepare{signature} {{\n{body}  (void)g;\n  (void)parameters;\n}}\n"

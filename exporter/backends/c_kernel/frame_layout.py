"""Memory layout of a kernel: lanes of elements, registers by dtype, C structures; the environment of the templates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from exporter.backends.c_kernel.c_expressions import TYPES
from exporter.backends.c_kernel.expression_graph import BOOL
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
SIZES = {"float64": 8, "float32": 4, "int64": 8, "int32": 4, "bool": 1}
ARRAYS = {"float64": "d", "float32": "f", "int64": "i", "int32": "j", "bool": "b"}


@dataclass(frozen=True)
class FrameCode:
    """C text of functions on one frame, whose structures and functions begin with ``name``."""

    name: str
    text: str
    prepare: str
    frame: str
    uniform: str
    # Those that are written out, and those of them that are computed once for a call.
    operations: int
    uniform_operations: int
    register_counts: Mapping[str, int]
    # Uniform values by dtype; the parameters whose tables are read in the caller's memory, and the number of those
    # tables.
    uniform_counts: Mapping[str, int]
    table_parameters: tuple[str, ...]
    table_count: int
    parameters: tuple[str, ...]
    helpers: tuple[str, ...]
    # Sizes of the unrolled systems.
    unrolled_sizes: tuple[int, ...]
    # Newton loops whose frames and uniform values are within these.
    loops: tuple[LoopCode, ...]

    @property
    def has_uniform(self) -> bool:
        """Return whether anything is the same for all elements."""
        return self.uniform_bytes > 0

    @property
    def frame_bytes(self) -> int:
        """Return the bytes of a frame for each of its lanes."""
        return count_bytes(self.register_counts) + sum(loop.frame_bytes for loop in self.loops)

    @property
    def uniform_bytes(self) -> int:
        """Return the bytes of what is the same for all elements."""
        own = count_bytes(self.uniform_counts) + 8 * self.table_count
        return own + sum(loop.uniform_bytes for loop in self.loops)


@dataclass(frozen=True)
class LoopCode(FrameCode):
    """C text of one Newton loop, of which methods have a frame each, called ``member``. Places are within that frame:
    an array's letter, and a register.

    ``guess`` is where it starts from, ``inputs`` has for each of the loop's outer inputs the dtype, the first register
    and the count of what is copied there, ``results`` are the unknowns, the matrix, iterations, norm and status.
    ``uniform_places`` are those of nodes that it computes itself once for a call."""

    member: str
    has_matrix: bool
    guess: int
    inputs: tuple[tuple[tuple[str, int, int], ...], ...]
    results: tuple[str, ...]
    uniform_places: Mapping[int, str]


@dataclass(frozen=True)
class MethodCode(FrameCode):
    """C text of one method, and the registers of its inputs and outputs."""

    inputs: Mapping[str, int]
    outputs: tuple[int, ...]
    statuses: tuple[str, ...]
    holds_environment: bool

    @property
    def is_small(self) -> bool:
        """Return whether the method has a body for one element, too."""
        return self.operations - self.uniform_operations <= SMALL

    @property
    def is_inlined_on_gpu(self) -> bool:
        """Return whether a thread of a GPU has the method in one function, and the frame in registers."""
        return self.operations <= INLINED


def count_bytes(counts: Mapping[str, int]) -> int:
    """Return the bytes of numbers by dtype, each array from a multiple of eight on."""
    sizes = SIZES | {BOOL: 4}
    return sum(-(-sizes[dtype] * count // 8) * 8 for dtype, count in counts.items())


def format_struct(
    name: str, counts: Mapping[str, int], *, lanes: bool, pointers: int = 0, inner: Mapping[str, str] | None = None
) -> str:
    """Return the declaration of a C structure with one array per dtype, and ``inner`` structures, by member."""
    members = [f"  struct {c_type} {member};" for member, c_type in (inner or {}).items()]
    members += [f"  const void *t[{pointers}];"] if pointers else []
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

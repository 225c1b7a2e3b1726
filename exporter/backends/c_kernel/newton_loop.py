"""Newton loops of one element as expression nodes: nodes that depend on a loop's own leaves are inside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from exporter.backends.c_kernel.expression_graph import ExprGraph

# The numbers of a reduced system have settled when none changes by more than this fraction: the next change would be
# one of rounding. What a last step leaves of the first residual is less than the second number.
SETTLED, TIGHT = 1e-9, 1e-12


@dataclass(frozen=True)
class Reduction:
    """Reduced system of a loop: ``starts`` are the values of its numbers at a guess of the loop's unknowns.

    ``step`` and ``solution``, which is the loop's unknowns, are nodes of ``tears``, the leaves of those numbers.
    ``places`` are where the model computes them."""

    starts: tuple[int, ...]
    tears: tuple[int, ...]
    step: tuple[int, ...]
    solution: tuple[int, ...]
    places: tuple[str, ...]


@dataclass(frozen=True)
class NewtonLoop:
    """Newton loop of one element: its unknowns are leaves of ``residual``, of ``matrix`` (row by row) and of ``step``.
    ``settings`` are nodes, by name."""

    path: str
    unknowns: tuple[int, ...]
    residual: tuple[int, ...]
    matrix: tuple[int, ...]
    settings: Mapping[str, int]
    strong_wolfe: bool
    searches: bool
    on_failure: str
    # Of each unknown, and whether the step can be trusted; empty where it takes the matrix.
    step: tuple[int, ...] = ()
    reduction: Reduction | None = None

    @property
    def size(self) -> int:
        """Return the number of unknowns."""
        return len(self.unknowns)

    def describe_reduction(self) -> str:
        """Return what a loop with a reduced system solves for."""
        assert self.reduction is not None
        count, places = len(self.reduction.tears), "; ".join(self.reduction.places)
        return f"{self.path} solves for {count} numbers instead of its {self.size} unknowns: {places}"

    @property
    def ends(self) -> tuple[int, ...]:
        """Return all nodes that the loop computes."""
        reduced = self.reduction
        more = (*reduced.starts, *reduced.step, *reduced.solution) if reduced else ()
        return (*self.residual, *self.matrix, *self.step, *more)


def find_loop_nodes(graph: ExprGraph, ends: Sequence[int], loop: int) -> list[int]:
    """Return the nodes below ``ends`` that depend on a loop's unknowns, in order."""
    inner: set[int] = set()
    pending = list(ends)
    while pending:
        i = pending.pop()
        if i not in inner and graph.loops[i] >> loop & 1:
            inner.add(i)
            pending += graph[i].args
    return sorted(inner)


def find_loop_inputs(graph: ExprGraph, ends: Sequence[int], loop: int) -> tuple[int, ...]:
    """Return the nodes that a loop reads for ``ends`` and that do not change in it."""
    inner = find_loop_nodes(graph, ends, loop)
    read = (a for i in inner for a in graph[i].args)
    return tuple(dict.fromkeys(i for i in (*read, *ends) if not graph.loops[i] >> loop & 1))


def list_outer_inputs(graph: ExprGraph, loop: NewtonLoop, index: int) -> tuple[int, ...]:
    """Return the nodes that a loop reads and that do not change in it: a node of the loop has them as arguments after
    its guess, in this order."""
    return tuple(dict.fromkeys((*find_loop_inputs(graph, loop.ends, index), *loop.settings.values())))

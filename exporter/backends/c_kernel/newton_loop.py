"""Newton loops of one element as expression nodes: nodes that depend on a loop's own leaves are inside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from exporter.backends.c_kernel.expression_graph import ExprGraph


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

    @property
    def size(self) -> int:
        """Return the number of unknowns."""
        return len(self.unknowns)

    @property
    def ends(self) -> tuple[int, ...]:
        """Return all nodes that the loop computes."""
        return (*self.residual, *self.matrix, *self.step)


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

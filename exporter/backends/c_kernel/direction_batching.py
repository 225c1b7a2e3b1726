"""Derivatives by one direction after the other: nodes for one direction, and a loop over all of them.

Nodes for every direction leave out structural zeros, but there are as many times more of them. Directions that no
number depends on two of are taken at once (Curtis, Powell and Reid, "On the estimation of sparse Jacobian
matrices", 1974)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from exporter.backends.c_kernel.expression_graph import COLUMNS, F64, REAL, ExprGraph
from exporter.backends.c_kernel.newton_loop import find_loop_inputs, find_loop_nodes

# Nodes of derivatives, structural zeros left out: more of them become a loop.
MANY = 20_000


@dataclass(frozen=True)
class DirectionLoop:
    """Loop over directions: ``tangents`` are nodes of ``seeds``, leaves that are 1 in the current group and 0 in all
    others. ``depends`` has for each tangent a bit of each seed. The derivatives are row by row: for each tangent one
    of each seed."""

    scope: int
    seeds: tuple[int, ...]
    tangents: tuple[int, ...]
    depends: tuple[int, ...]
    groups: tuple[tuple[int, ...], ...]

    @property
    def count(self) -> int:
        """Return the number of derivatives."""
        return len(self.tangents) * len(self.seeds)

    def seed_groups(self) -> list[int]:
        """Return the group of each seed."""
        return [next(g for g, group in enumerate(self.groups) if k in group) for k in range(len(self.seeds))]

    def find_seed(self, group: int, tangent: int) -> int:
        """Return the seed of a group that a tangent depends on; -1 for none."""
        return next((k for k in self.groups[group] if self.depends[tangent] >> k & 1), -1)


def find_dependences(graph: ExprGraph, order: Iterable[int], seeds: Mapping[int, int]) -> dict[int, int]:
    """Return for each node in ``order`` the bits of the seeds that it depends on; ``seeds`` gives their own bits."""
    dependences = dict(seeds)
    for i in order:
        if i not in dependences:
            bits = 0
            for a in graph[i].args:
                bits |= dependences.get(a, 0)
            dependences[i] = bits if graph[i].dtype in REAL else 0
    return dependences


def group_directions(depends: Sequence[int], count: int) -> tuple[tuple[int, ...], ...]:
    """Put each direction into the first group in which no number depends on it and on another."""
    groups: list[list[int]] = []
    occupied: list[int] = []
    for k in range(count):
        numbers = sum(1 << e for e, bits in enumerate(depends) if bits >> k & 1)
        free = next((g for g, used in enumerate(occupied) if not used & numbers), None)
        if free is None:
            groups.append([k])
            occupied.append(numbers)
        else:
            groups[free].append(k)
            occupied[free] |= numbers
    return tuple(map(tuple, groups))


def add_direction_loop(graph: ExprGraph, scope: int, seeds: Sequence[int], tangents: Sequence[int]) -> list[int]:
    """Return the derivatives of the numbers whose ``tangents`` are nodes of ``seeds``, row by row."""
    order = find_loop_nodes(graph, tangents, scope)
    dependences = find_dependences(graph, order, {seed: 1 << k for k, seed in enumerate(seeds)})
    depends = tuple(dependences.get(t, 0) for t in tangents)
    loop = DirectionLoop(scope, tuple(seeds), tuple(tangents), depends, group_directions(depends, len(seeds)))
    node = graph.add(COLUMNS, find_loop_inputs(graph, tangents, scope), F64, (loop,))
    zero = graph.add_constant(0.0, F64)
    places = [(e * len(seeds) + k, bits >> k & 1) for e, bits in enumerate(depends) for k in range(len(seeds))]
    return [graph.add("pick", (node,), F64, (place,)) if depends_on else zero for place, depends_on in places]

"""The order in which nodes are computed, and the registers of their values.

Nodes fall into levels: scalars that are computed together in one loop over the lanes, which a compiler vectorises;
calls of libm and reads of tables, each in a loop of its own, which it does not; and whole blocks (a factorisation, a
solution, a Newton loop). Values that are used outside of their own loop have a register: one number for each lane."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from exporter.backends.c_kernel.c_expressions import LIBM
from exporter.backends.c_kernel.expression_graph import BOOL, SEVERAL, TABLES, ExprGraph

# Scalars of one function in C: compilers take more than linear time over longer ones.
CHUNK = 1_200
SCALARS, CALLS, BLOCK = "scalars", "calls", "block"
# Operations that run for each element, even on parameters alone.
_EACH = (*SEVERAL, *TABLES, "pick", "singular")


@dataclass(frozen=True)
class Step:
    """Step of a method: ``scalars`` and ``calls`` are several nodes, in order; a ``block`` is one."""

    category: str
    nodes: tuple[int, ...]


@dataclass
class RegisterAllocator:
    """Allocator of registers, by dtype, with the register of each node. Registers taken together are contiguous."""

    counts: Counter[str] = field(default_factory=Counter)
    places: dict[int, tuple[str, int]] = field(default_factory=dict)

    def take(self, dtype: str, count: int = 1) -> int:
        """Reserve ``count`` contiguous registers and return the first."""
        first = self.counts[dtype]
        self.counts[dtype] += count
        return first

    def assign(self, node: int, dtype: str) -> None:
        """Reserve a register for a node that has none."""
        if node not in self.places:
            self.places[node] = (dtype, self.take(dtype))


def find_uniform_nodes(graph: ExprGraph, ends: Iterable[int]) -> list[int]:
    """Return the nodes below ``ends`` that are the same for all elements: of parameters alone, constants left out."""
    uniform_nodes: dict[int, None] = {}
    for i in reachable_nodes(graph, ends, ()):
        node = graph[i]
        if node.op == "const" or node.op in _EACH or graph.batch_rows[i] or graph.loops[i]:
            continue
        if all(a in uniform_nodes or graph[a].op == "const" for a in node.args):
            uniform_nodes[i] = None
    return list(uniform_nodes)


def is_uniform(graph: ExprGraph, numbers: Sequence[int]) -> bool:
    """Return whether these nodes are the same for all elements, and known before the first element is computed."""
    if any(graph.batch_rows[i] or graph.loops[i] for i in numbers):
        return False
    return all(graph[i].op not in _EACH for i in reachable_nodes(graph, numbers, ()))


def find_parameter_tables(graph: ExprGraph, needed: Iterable[int]) -> dict[tuple[int, ...], tuple[str, int]]:
    """Return the tables that are contiguous numbers of a parameter in memory: its name, and the first number."""
    tables = {}
    for numbers in {graph[i].args[1:] for i in needed if graph[i].op in TABLES}:
        first = graph[numbers[0]]
        if first.op == "leaf" and first.dtype != BOOL:
            name, start, _ = first.extra
            if all(graph[n].op == "leaf" and graph[n].extra[:2] == (name, k) for k, n in enumerate(numbers, start)):
                tables[numbers] = (name, start)
    return tables


def reachable_nodes(graph: ExprGraph, ends: Iterable[int], available: Collection[int]) -> list[int]:
    """Return the nodes that ``ends`` need besides ``available`` ones, in an order in which they can be computed."""
    nodes: set[int] = set()
    pending = list(ends)
    while pending:
        i = pending.pop()
        if i not in nodes and i not in available:
            nodes.add(i)
            pending += graph[i].args
    return sorted(nodes)


def schedule_steps(graph: ExprGraph, needed: Sequence[int]) -> list[Step]:
    """Split ``needed``, from ``reachable_nodes``, into steps. Picks and constants are none."""
    level: dict[int, int] = {}
    groups: dict[tuple[int, int], list[int]] = {}
    for i in needed:
        node = graph[i]
        if node.op in ("const", "leaf"):
            continue
        depth = max((level.get(a, 0) for a in node.args), default=0)
        if node.op in ("pick", "singular"):
            level[i] = depth
            if node.op == "singular":
                groups.setdefault((depth, 0), []).append(i)
            continue
        order = 2 if node.op in SEVERAL else 1 if node.op in LIBM or node.op in TABLES else 0
        groups.setdefault((depth, order), []).append(i)
        # Nodes after a call or a block are on the next level.
        level[i] = depth + (order > 0)
    ordered_steps = []
    for (_, order), members in sorted(groups.items()):
        if order == 2:
            ordered_steps += [Step(BLOCK, (i,)) for i in members]
        elif order == 1:
            ordered_steps.append(Step(CALLS, tuple(members)))
        else:
            ordered_steps += [Step(SCALARS, tuple(members[i : i + CHUNK])) for i in range(0, len(members), CHUNK)]
    return ordered_steps


def allocate_registers(
    graph: ExprGraph,
    order: Sequence[Step],
    ends: Iterable[int],
    allocator: RegisterAllocator,
    available: Mapping[int, object],
) -> None:
    """Assign a register to each scalar that is used outside of its own step, or is one of ``ends``."""
    step_of = {i: position for position, step in enumerate(order) for i in step.nodes}
    stored = {i for i in ends if i in step_of}
    for position, step in enumerate(order):
        for i in step.nodes:
            if step.category == CALLS:
                stored.add(i)
            for a in graph[i].args:
                if a in step_of and (step_of[a] != position or step.category != SCALARS):
                    stored.add(a)
    for i in sorted(stored):
        if graph[i].op not in SEVERAL and i not in available:
            allocator.assign(i, graph[i].dtype)

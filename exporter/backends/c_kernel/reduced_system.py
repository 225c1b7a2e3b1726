"""The few numbers with which the rest of a residual is linear in its unknowns, and Newton's step in them.

A norm of stresses and a rate of flow, once they are known, leave a linear system for all stresses and hardening
variables (tearing; Baharev, Schichl and Neumaier, Decomposition methods for solving sparse nonlinear systems of
equations, 2016). Its solution is written out when the kernel is, as sums of products of numbers that change with
numbers that do not; what is solved at run time are the definitions of the few: for the plasticity of metals the scalar
equations of radial return (Simo and Hughes, Computational Inelasticity, 1998, chapter 3), found by structure alone.

Their solution is where Newton's method on the whole residual begins and ends: that is evaluated there, and decides."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import networkx
from networkx.algorithms import flow

from exporter.backends.c_kernel import newton_step
from exporter.backends.c_kernel.expression_graph import BOOL, F64, MOST, SEVERAL, ExprGraph
from exporter.backends.c_kernel.forward_mode import Loops
from exporter.backends.c_kernel.newton_loop import Reduction, find_loop_nodes
from exporter.backends.c_kernel.newton_step import SparseSystem
from exporter.backends.c_kernel.separable_forms import Separable, SeparableForms

# A reduced system of more numbers is no smaller problem, and one of more operations none to search.
MOST_TEARS, MOST_OPERATIONS = 4, 4_000
# Nodes that are made for each node of a step, at most: sums of products that do not stay short make many.
MOST_MADE = 8
# Numbers that are tried as known because products need them.
MOST_CANDIDATES = 8
KNOWN, LINEAR, OTHER = range(3)


@dataclass(frozen=True)
class Residual:
    """The residual of a loop: its ``ends``, one for each of the ``unknowns``, and the nodes that change with these."""

    graph: ExprGraph
    loop: int
    ends: tuple[int, ...]
    unknowns: tuple[int, ...]
    inner: tuple[int, ...]

    def classify(self, tears: Collection[int]) -> dict[int, int]:
        """Return what each node is once ``tears`` are known: known, linear in the unknowns, or neither."""
        kinds = {i: KNOWN if i in tears else LINEAR for i in self.unknowns}
        for i in self.inner:
            if i not in kinds:
                kinds[i] = KNOWN if i in tears else self._classify_node(i, kinds)
        return kinds

    def _classify_node(self, i: int, kinds: Mapping[int, int]) -> int:
        node = self.graph[i]
        args = [kinds.get(a, KNOWN) for a in node.args]
        most = max(args)
        if most != LINEAR:
            return most
        is_linear = node.op in ("add", "sub", "neg")
        is_linear |= node.op == "mul" and KNOWN in args
        is_linear |= node.op == "div" and args[1] == KNOWN
        is_linear |= node.op == "where" and args[0] == KNOWN
        return LINEAR if is_linear else OTHER

    def is_solvable(self, tears: Collection[int], kinds: Mapping[int, int]) -> bool:
        """Return whether the rest is linear, and has as many equations as unknowns."""
        known_ends = [end for end in self.ends if kinds[end] == KNOWN]
        is_linear = all(kinds[end] != OTHER for end in self.ends)
        return is_linear and len(known_ends) == len(set(tears) & set(self.unknowns))

    def list_births(self, kinds: Mapping[int, int]) -> list[int]:
        """Return the operations that are not linear, of arguments that are."""
        others = [i for i in self.inner if kinds[i] == OTHER]
        return [i for i in others if all(kinds.get(a) != OTHER for a in self.graph[i].args)]


class LinearSystem(SparseSystem[Separable]):
    """A system whose right sides are sums of products. ``shared`` are results that components have in common."""

    def __init__(
        self, forms: SeparableForms, own: Mapping[int, int], unknowns: Collection[int], shared: Collection[int]
    ) -> None:
        super().__init__(forms.graph, own)
        self.forms, self.unknowns, self.shared = forms, unknowns, shared

    def get_delay(self, row: int) -> int:
        """Return how late a row comes: the mean of a tensor after its components, which so have equations of one shape,
        and numbers in common."""
        column = self.own[row]
        return 2 if column in self.shared else int(column in self.unknowns)

    def add(self, row: int, column: int, number: int, op: str = "add", size: int | None = None) -> None:
        """Add a number to an entry, or subtract it."""
        form = self.forms.lift(number)
        super().add(row, column, self.forms.join(self.forms.negate(form) if op == "sub" else form), size=size)

    def scale_number(self, column: int, factor: int, number: Separable) -> Separable:
        """Return the product of an entry and the number of its column; a shared one is the same for all components."""
        form = self.scale_right(factor, number)
        return self.forms.hold(self.forms.join(form)) if column in self.shared else form

    def add_rights(self, known: Separable, number: Separable, op: str) -> Separable:
        """Return the sum or the difference of two right sides."""
        return self.forms.add(known, number, op)

    def negate_right(self, number: Separable) -> Separable:
        """Return the negative of a right side."""
        return self.forms.negate(number)

    def scale_right(self, factor: int, number: Separable) -> Separable:
        """Return the product of an entry and a right side."""
        return self.forms.multiply(self.forms.lift(factor), number)


def build_reduction(
    graph: ExprGraph, loops: Loops, residual: Sequence[int], unknowns: Sequence[int], loop: int, most: int
) -> Reduction | None:
    """Build the reduced system of a loop; None where there is none that a step takes fewer than ``most`` nodes for."""
    inner = tuple(find_loop_nodes(graph, residual, loop))
    is_plain = all(graph[i].op not in (*SEVERAL, "pick") and graph[i].dtype in (F64, BOOL) for i in inner)
    ends = set(residual)
    is_distinct = len(ends) == len(residual) and ends <= set(inner) - set(unknowns)
    # Nodes that are made in vain count as well.
    has_room = len(graph) + 4 * MOST_MADE * most < MOST
    if not is_plain or not is_distinct or not has_room or len(inner) > MOST_OPERATIONS:
        return None
    whole = Residual(graph, loop, tuple(residual), tuple(unknowns), inner)
    tears = find_tears(whole)
    if tears is None:
        return None
    return _Builder(whole, tears).build(loops, most)


def find_tears(residual: Residual) -> list[int] | None:
    """Return few nodes, with which known the rest is linear; equations among them are to become zero.

    Returns None where that takes more than ``MOST_TEARS``, or leaves more unknowns than equations."""
    best, chosen = _cut(residual, ()), ()
    while True:
        choices = [(*chosen, c) for c in _list_candidates(residual, chosen)]
        cuts = [(tears, c) for c in choices if (tears := _cut(residual, c)) is not None]
        better = [(tears, c) for tears, c in cuts if best is None or len(tears) < len(best)]
        if not better:
            return _move_up(residual, best) if best else None
        best, chosen = min(better, key=lambda pair: len(pair[0]))


def _move_up(residual: Residual, tears: list[int]) -> list[int]:
    """Return the tears, each moved to where others read it: of one over a norm to the norm.

    What else is made of the norm then is made of the tear, as in Newton's method on all unknowns."""
    uses: dict[int, int] = {}
    for i in residual.inner:
        for a in set(residual.graph[i].args):
            uses[a] = uses.get(a, 0) + 1
    for tear in [t for t in tears if t not in residual.ends]:
        others = [t for t in tears if t != tear]
        kinds, node = residual.classify(others), tear
        while kinds[node] == OTHER:
            sources = {a for a in residual.graph[node].args if kinds.get(a, KNOWN) != KNOWN}
            if len(sources) != 1:
                break
            (node,) = sources
            if kinds[node] == OTHER and uses[node] > 1:
                moved = sorted([*others, node])
                kinds = residual.classify(moved)
                tears = moved if residual.is_solvable(moved, kinds) else tears
                break
    return tears


def _list_candidates(residual: Residual, chosen: Sequence[int]) -> list[int]:
    """Return numbers that several products are linear with, once they are known: the most used ones first."""
    kinds = residual.classify(chosen)
    counts: dict[int, int] = {}
    for i in residual.inner:
        if residual.graph[i].op == "mul" and kinds[i] == OTHER:
            for a in set(residual.graph[i].args):
                if kinds.get(a) in (LINEAR, OTHER):
                    known = _find_only_unknown(residual, a) if kinds[a] == LINEAR else a
                    counts[known] = counts.get(known, 0) + 1
    several = sorted((i for i, count in counts.items() if count > 1), key=lambda i: (-counts[i], i))
    return several[:MOST_CANDIDATES]


def _find_only_unknown(residual: Residual, node: int) -> int:
    """Return the unknown of an increment that is of one alone, else the node."""
    unknowns: set[int] = set()
    pending, seen = [node], {node}
    while pending and len(unknowns) < 2:
        i = pending.pop()
        unknowns |= {i} & set(residual.unknowns)
        below = [a for a in residual.graph[i].args if residual.graph.loops[a] >> residual.loop & 1 and a not in seen]
        seen.update(below)
        pending += below
    return unknowns.pop() if len(unknowns) == 1 else node


def _cut(residual: Residual, chosen: Sequence[int]) -> list[int] | None:
    """Return the smallest set of nodes, with ``chosen`` among them, between what is not linear and the residual: of
    several the one next to the residual. None where it is too large."""
    births: dict[int, None] = {}
    tears = list(chosen)
    while True:
        kinds = residual.classify(tears)
        if all(kinds[end] != OTHER or end in tears for end in residual.ends):
            return sorted(tears) if residual.is_solvable(tears, kinds) else None
        # Seen from here, what was cut before may be cut elsewhere.
        births |= dict.fromkeys(i for i in residual.list_births(kinds) if i not in chosen)
        cut = _find_smallest_cut(residual, births, chosen)
        if cut is None or set(cut) | set(chosen) == set(tears):
            return None
        tears = [*chosen, *cut]
        if len(tears) > MOST_TEARS:
            return None


def _find_smallest_cut(residual: Residual, births: Collection[int], chosen: Sequence[int]) -> list[int] | None:
    graph, network = residual.graph, networkx.DiGraph()
    inner = set(residual.inner)
    for i in residual.inner:
        if i in chosen:
            continue
        network.add_edge((i, "in"), (i, "out"), **({"capacity": 1} if graph[i].dtype == F64 else {}))
        for a in graph[i].args:
            if a in inner and a not in chosen:
                network.add_edge((a, "out"), (i, "in"))
    for i in births:
        network.add_edge("source", (i, "in"))
    for i in residual.ends:
        if i not in chosen:
            network.add_edge((i, "out"), "sink")
    if "source" not in network or "sink" not in network:
        return None
    rest = flow.edmonds_karp(network, "source", "sink", cutoff=MOST_TEARS + 1)
    if rest.graph["flow_value"] > MOST_TEARS - len(chosen):
        return None
    # Edges that are full lead nowhere: what still reaches the residual is on its side.
    full = [(a, b) for a, b, data in rest.edges(data=True) if data["flow"] == data["capacity"]]
    rest.remove_edges_from(full)
    side = networkx.ancestors(rest, "sink") | {"sink"}
    return sorted(i for i in residual.inner if (i, "out") in side and (i, "in") not in side and (i, "in") in network)


class _Builder:
    """Builder of a reduced system."""

    def __init__(self, residual: Residual, tears: Sequence[int]) -> None:
        self.residual, self.graph, self.tears = residual, residual.graph, tears
        self.forms = SeparableForms(self.graph, residual.loop)
        row = next((r for r in (self.graph.batch_rows[i] for i in residual.unknowns) if r), 0)
        zero = self.graph.add_constant(0.0, F64)
        # Equations that are not linear become zero.
        self.leaves = {
            i: zero
            if i in residual.ends
            else self.graph.add_leaf(f"tears:{residual.loop}", k, F64, row, 1 << residual.loop)
            for k, i in enumerate(tears)
        }
        self.kinds = residual.classify(tears)
        # Equations of the tears alone.
        self.ends = [i for i in residual.ends if self.kinds[i] == KNOWN]
        # Known nodes, in terms of the tears.
        self._known: dict[int, int] = dict(self.leaves)
        for i in residual.inner:
            if self.kinds[i] == KNOWN and i not in self._known:
                item = self.graph[i]
                args = [self._get_value(a) for a in item.args]
                self._known[i] = self.graph.add(item.op, args, item.dtype, item.extra)

    def build(self, loops: Loops, most: int) -> Reduction | None:
        """Build the reduction; see ``build_reduction``."""
        graph, forms = self.graph, self.forms
        unknowns = self._solve_unknowns(MOST_MADE * most)
        if unknowns is None:
            return None
        values = self._evaluate(unknowns)
        unknown_tears = [i for i in self.tears if i in self.residual.unknowns]
        results = [i for i in self.tears if i not in unknown_tears and i not in self.ends]
        numbers = [*results, *unknown_tears]
        tears = [self.leaves[i] for i in numbers]
        definitions = [graph.add("sub", (forms.join(values[i]), self.leaves[i]), F64) for i in results]
        definitions += [forms.join(values[i]) for i in self.ends]
        step = newton_step.build_step(graph, loops, definitions, tears, self.residual.loop, most)
        solution = [forms.join(unknowns[i]) for i in self.residual.unknowns]
        if not step or len(find_loop_nodes(graph, step, self.residual.loop)) > most:
            return None
        own = self.residual.unknowns
        places = [f"unknown {own.index(i)}" if i in own else graph.origins[i] or "a result" for i in numbers]
        return Reduction(tuple(numbers), tuple(tears), tuple(step[:-1]), tuple(solution), tuple(places))

    def _get_value(self, node: int) -> int:
        return self._known.get(node, node)

    def _solve_unknowns(self, most: int) -> dict[int, Separable] | None:
        """Solve the linear equations; return the unknowns as sums of products.

        Returns None where some have no equation, and where it makes more than ``most`` nodes."""
        residual, graph, forms = self.residual, self.graph, self.forms
        equations = [i for i in residual.ends if i not in self.ends]
        unknowns = [i for i in residual.unknowns if i not in self.leaves]
        pairs = dict(zip(residual.ends, residual.unknowns, strict=True))
        own = {end: pairs[end] for end in equations if pairs[end] in unknowns}
        left = [u for u in unknowns if u not in set(own.values())]
        own |= dict(zip([end for end in equations if end not in own], left, strict=True))
        needed, first = self._list_needed(equations), len(graph)
        own |= {i: i for i in needed if i not in own}
        parts = {i: [] if i in unknowns else self._list_linear_parts(i) for i in needed}
        system = LinearSystem(forms, own, unknowns, self._list_shared(parts))
        minus_one = graph.add_constant(-1.0, F64)
        for i, products in parts.items():
            if i in unknowns:
                continue
            if own[i] == i:
                system.add(i, i, minus_one)
            for factor, argument in products:
                if self.kinds.get(argument) == LINEAR:
                    system.add(i, argument, factor)
                else:
                    product = forms.multiply(forms.lift(factor), forms.lift(self._get_value(argument)))
                    system.add_right(i, product, "sub")
        solved = []
        while system.rows:
            row = system.choose_row()
            if row is None or len(graph) - first > most:
                return None
            solved.append(system.eliminate(row))
        if not {row.column for row in solved} >= set(unknowns):
            return None
        numbers = system.substitute_back(solved)
        known = {i: forms.lift(self.leaves[i]) for i in residual.unknowns if i in self.leaves}
        return {i: numbers.get(i, forms.lift(graph.add_constant(0.0, F64))) for i in unknowns} | known

    def _list_needed(self, equations: Sequence[int]) -> list[int]:
        """Return the linear nodes below the linear equations, in order."""
        needed: set[int] = set()
        pending = [i for i in equations if self.kinds[i] == LINEAR]
        while pending:
            i = pending.pop()
            if i not in needed:
                needed.add(i)
                pending += [a for a in self.graph[i].args if self.kinds.get(a) == LINEAR]
        return sorted(needed)

    def _list_shared(self, parts: Mapping[int, Sequence[tuple[int, int]]]) -> set[int]:
        """Return the results of several unknowns that several others are made of, as the mean of a tensor is."""
        args: dict[int, list[int]] = {}
        uses: dict[int, int] = {}
        for i, products in parts.items():
            read = [a for f, a in products if a in args and self.graph.constant_value(f) != 0.0]
            # What is zero by structure is no argument.
            if read or i in self.residual.unknowns:
                args[i] = read
            for a in read:
                uses[a] = uses.get(a, 0) + 1
        shared: set[int] = set()
        depends: dict[int, set[int]] = {}
        for i, read in args.items():
            depends[i] = {i} if i in self.residual.unknowns else set().union(*(depends[a] for a in read))
            if len(depends[i]) > 1 and uses.get(i, 0) > 1:
                shared.add(i)
                depends[i] = set()
        return shared

    def _list_linear_parts(self, i: int) -> list[tuple[int, int]]:
        """Return factors, which are known, and nodes: their products sum up to a linear node. An equation that another
        one is made of becomes zero, and is left out."""
        return [(factor, a) for factor, a in self._split_linear_node(i) if a not in self.residual.ends]

    def _split_linear_node(self, i: int) -> list[tuple[int, int]]:
        graph, node = self.graph, self.graph[i]
        unit, minus_one = graph.add_constant(1.0, F64), graph.add_constant(-1.0, F64)
        first, *others = node.args
        if node.op == "neg":
            return [(minus_one, first)]
        if node.op in ("add", "sub"):
            return [(unit, first), (unit if node.op == "add" else minus_one, others[0])]
        if node.op == "div":
            return [(graph.add("div", (unit, self._get_value(others[0])), F64), first)]
        if node.op == "mul":
            known, linear = node.args if self.kinds.get(first, KNOWN) == KNOWN else (others[0], first)
            return [(self._get_value(known), linear)]
        assert node.op == "where"
        condition, zero = self._get_value(first), graph.add_constant(0.0, F64)
        choices = ((unit, zero), (zero, unit))
        return [(graph.add("where", (condition, *choice), F64), a) for choice, a in zip(choices, others, strict=True)]

    def _evaluate(self, unknowns: Mapping[int, Separable]) -> dict[int, Separable]:
        """Return the tears' own expressions, with the solution in the place of the unknowns."""
        graph, forms = self.graph, self.forms
        values: dict[int, Separable] = {}
        conditions: dict[int, int] = {}
        known = {i: forms.lift(leaf) for i, leaf in self.leaves.items()}

        def get(node: int) -> Separable:
            return known[node] if node in known else values[node] if node in values else forms.lift(node)

        def get_node(node: int) -> int:
            return forms.join(get(node)) if graph[node].dtype == F64 else conditions.get(node, node)

        operations: dict[str, Callable[..., Separable]] = {
            "add": forms.add,
            "sub": lambda a, b: forms.add(a, b, "sub"),
            "mul": forms.multiply,
            "neg": forms.negate,
            "div": forms.divide,
        }
        for i in find_loop_nodes(graph, [*self.tears, *self.ends], self.residual.loop):
            node = graph[i]
            if node.op == "leaf":
                values[i] = unknowns[i]
            elif node.op in operations and node.dtype == F64:
                values[i] = operations[node.op](*(get(a) for a in node.args))
            else:
                result = graph.add(node.op, [get_node(a) for a in node.args], node.dtype, node.extra)
                if node.dtype == F64:
                    values[i] = forms.lift(result)
                else:
                    conditions[i] = result
        return values

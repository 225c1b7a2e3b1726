"""Newton's step from the operations of the residual, without its matrix.

The changes of the unknowns, and of all results between them and the residual, solve one sparse linear system: a row for
each operation, with its partial derivatives. It is eliminated here, symbol by symbol, in an order that makes few new
entries (Markowitz, Management Science 3, 1957), so that a step costs a few operations for each of the residual's. To
build the matrix and then to solve with it is one of those orders, and seldom a good one (Griewank and Walther,
Evaluating Derivatives, 2008, chapter 10).

The order is the same for every state, and no rows are exchanged: each step says whether it can be trusted."""

from __future__ import annotations

import functools
import heapq
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from exporter.backends.c_kernel.expression_graph import BOOL, F64, SEVERAL, Expr, ExprGraph, where
from exporter.backends.c_kernel.forward_mode import ForwardMode, Loops, Tangent
from exporter.backends.c_kernel.newton_loop import find_loop_nodes
from exporter.backends.c_kernel.rules.derivatives import NoRuleError

# What a right side is.
Right = TypeVar("Right")
# A pivot that is so small a fraction of the numbers that it is the sum of may be one of rounding errors.
SMALL_PIVOT = 1e-8
# What a step may leave of the residual, were that linear, as a fraction of its norm.
LEFT = 1e-7


class SparseSystem(Generic[Right]):
    """Rows of a linear system: by row the entries by column, and the right side.

    Entries are nodes; what right sides are, ``negate_right``, ``add_rights`` and ``scale_right`` know.

    ``own`` has the column that a row is the equation of. Of an entry that is the sum of several numbers, or comes from
    one, ``sizes`` has how large these are together."""

    def __init__(self, graph: ExprGraph, own: Mapping[int, int]) -> None:
        self.graph, self.own = graph, own
        self.rows: dict[int, dict[int, int]] = {}
        self.rights: dict[int, Right] = {}
        self.sizes: dict[tuple[int, int], int] = {}
        self._owners = {column: row for row, column in own.items()}
        self._columns: dict[int, set[int]] = {}
        # Rows to choose from, each again where it has changed since: the last one counts.
        self._queue: list[tuple[int, int, int]] = []
        self._changed: set[int] = set()

    def add(self, row: int, column: int, number: int, op: str = "add", size: int | None = None) -> None:
        """Add a number to an entry, or subtract it; what is zero by its structure stays out."""
        if self.graph.constant_value(number) == 0.0:
            return
        entries, place = self.rows.setdefault(row, {}), (row, column)
        if column in entries or place in self.sizes:
            known = self.sizes.get(place) or self._take_size(entries[column])
            self.sizes[place] = self.graph.add("add", (known, size or self._take_size(number)), F64)
        elif size is not None:
            self.sizes[place] = size
        value = self._combine(entries.get(column), number, op)
        self._changed |= {row, self._owners[column]}
        if self.graph.constant_value(value) == 0.0:
            del entries[column]
            self._columns[column].discard(row)
            return
        entries[column] = value
        self._columns.setdefault(column, set()).add(row)

    def add_right(self, row: int, number: Right, op: str = "add") -> None:
        """Add a number to the right side of a row, or subtract it."""
        known = self.rights.get(row)
        if known is not None:
            self.rights[row] = self.add_rights(known, number, op)
        else:
            self.rights[row] = number if op == "add" else self.negate_right(number)

    def add_rights(self, known: Right, number: Right, op: str) -> Right:
        """Return the sum or the difference of two right sides."""
        raise NotImplementedError

    def negate_right(self, number: Right) -> Right:
        """Return the negative of a right side."""
        raise NotImplementedError

    def scale_right(self, factor: int, number: Right) -> Right:
        """Return the product of an entry and a right side."""
        raise NotImplementedError

    def _combine(self, known: int | None, number: int, op: str) -> int:
        if known is not None:
            return self.graph.add(op, (known, number), F64)
        return number if op == "add" else self.graph.add("neg", (number,), F64)

    def _take_size(self, number: int) -> int:
        return self.graph.add("abs", (number,), F64)

    def choose_row(self) -> int | None:
        """Return the row whose elimination makes the fewest new entries, at most; None if no row has its own column.

        A row is solved for the result that it is the equation of, or the unknown that its residual is for: in the
        models of solids and of rates those pivots are one and something. Rows come last whose pivot depends on the
        state while something else in them depends on their column directly: that may be all that the pivot has."""
        for row in self._changed & self.rows.keys():
            if (key := self._rank(row)) is not None:
                heapq.heappush(self._queue, key)
        self._changed = set()
        while self._queue:
            key = heapq.heappop(self._queue)
            if key[-1] in self.rows and key == self._rank(key[-1]):
                return key[-1]
        return None

    def _rank(self, row: int) -> tuple[int, int, int] | None:
        entries, column = self.rows[row], self.own[row]
        if column not in entries:
            return None
        return self.get_delay(row), (len(entries) - 1) * (len(self._columns[column]) - 1), row

    def get_delay(self, row: int) -> int:
        """Return how late a row comes, whatever its elimination makes."""
        entries, column = self.rows[row], self.own[row]
        has_more = any(column in self.rows.get(c, ()) for c in entries if c != column)
        return int(has_more and bool(self.graph.loops[entries[column]]))

    def eliminate(self, row: int) -> SolvedRow[Right]:
        """Take a row out of the system, and its own column out of all other rows."""
        graph, column = self.graph, self.own[row]
        entries, right = self.rows.pop(row), self.rights.get(row)
        pivot = entries.pop(column)
        for other in entries:
            self._columns[other].discard(row)
            self._changed.add(self._owners[other])
        inverse = graph.add("div", (graph.add_constant(1.0, F64), pivot), F64)
        # The row of a result that is used as it is: a product with -1 is none.
        op = "add" if graph.constant_value(pivot) == -1.0 else "sub"
        for other in sorted(self._columns.pop(column) - {row}):
            self._changed.add(other)
            factor = self.rows[other].pop(column)
            factor = factor if op == "add" else graph.add("mul", (factor, inverse), F64)
            for c, value in entries.items():
                size = self.sizes.get((row, c))
                size = size and graph.add("mul", (self._take_size(factor), size), F64)
                self.add(other, c, graph.add("mul", (factor, value), F64), op, size)
            if right is not None:
                self.add_right(other, self.scale_right(factor, right), op)
        return SolvedRow(column, pivot, inverse, entries, right)

    def substitute_back(self, solved: Sequence[SolvedRow[Right]]) -> dict[int, Right]:
        """Return the numbers of columns, from the last row that was eliminated to the first; zeros are left out."""
        numbers: dict[int, Right] = {}
        for row in reversed(solved):
            value = row.right
            for column, factor in row.entries.items():
                if column in numbers:
                    product = self.scale_number(column, factor, numbers[column])
                    value = self.negate_right(product) if value is None else self.add_rights(value, product, "sub")
            if value is not None:
                numbers[row.column] = self.scale_right(row.inverse, value)
        return numbers

    def scale_number(self, column: int, factor: int, number: Right) -> Right:
        """Return the product of an entry and the number of its column."""
        return self.scale_right(factor, number)


class NodeSystem(SparseSystem[int]):
    """A system whose right sides are nodes."""

    def add_rights(self, known: int, number: int, op: str) -> int:
        """Return the sum or the difference of two right sides."""
        return self.graph.add(op, (known, number), F64)

    def negate_right(self, number: int) -> int:
        """Return the negative of a right side."""
        return self.graph.add("neg", (number,), F64)

    def scale_right(self, factor: int, number: int) -> int:
        """Return the product of an entry and a right side."""
        return self.graph.add("mul", (number, factor), F64)


@dataclass(frozen=True)
class SolvedRow(Generic[Right]):
    """An eliminated row: its column, the pivot and one over it, the other entries, and the right side."""

    column: int
    pivot: int
    inverse: int
    entries: Mapping[int, int]
    right: Right | None


def build_step(
    graph: ExprGraph, loops: Loops, residual: Sequence[int], unknowns: Sequence[int], loop: int, most: int
) -> tuple[int, ...]:
    """Build the nodes of Newton's step, and of whether it can be trusted (1, else 0).

    Returns none where the residual has an operation without a rule, or of another kind than double precision, has no
    structure that leaves a pivot, or where the elimination makes more than ``most`` nodes."""
    inner = find_loop_nodes(graph, residual, loop)
    is_plain = all(graph[i].op not in (*SEVERAL, "pick") and graph[i].dtype in (F64, BOOL) for i in inner)
    ends = dict.fromkeys(residual)
    is_distinct = len(ends) == len(residual) and ends.keys() <= set(inner) - set(unknowns)
    if not is_plain or not is_distinct or len(inner) > most:
        return ()
    first = len(graph)
    try:
        system = _build_system(graph, loops, residual, unknowns, inner)
    except NoRuleError:
        return ()
    solved: list[SolvedRow[int]] = []
    trusted: list[Expr] = []
    while system.rows:
        row = system.choose_row()
        if row is None or len(graph) - first > most:
            return ()
        size = system.sizes.get((row, system.own[row]))
        solved.append(system.eliminate(row))
        if size is not None:
            trusted.append(SMALL_PIVOT * Expr(graph, size) < Expr(graph, solved[-1].pivot).apply("abs"))
    zero = Expr(graph, graph.add_constant(0.0, F64))
    changes = system.substitute_back(solved)
    step = [changes.get(u, zero.index) for u in unknowns]
    seeds = _find_outer_tangents(graph, inner)
    seeds |= {u: {"": s} for u, s in zip(unknowns, step, strict=True)}
    tangents = ForwardMode(graph, loops, seeds).differentiate(residual)
    if not all(tangents):
        return ()
    changes_along = [tangent[""] for tangent in tangents]
    holds = functools.reduce(operator.and_, trusted, _compare_change(graph, residual, changes_along))
    # Where that is known, no state has a step that can be trusted.
    return (*step, where(holds, zero + 1.0, 0.0).index) if holds.constant is None else ()


def _find_outer_tangents(graph: ExprGraph, inner: Sequence[int]) -> dict[int, Tangent]:
    """Return the tangents of what a loop reads and does not change: none."""
    own = set(inner)
    return {a: {} for i in inner for a in graph[i].args if a not in own}


def _compare_change(graph: ExprGraph, residual: Sequence[int], changes: Sequence[int]) -> Expr:
    """Build whether the residual's change along a step is what makes it zero."""
    values = [Expr(graph, i) for i in residual]
    left = [value + Expr(graph, change) for value, change in zip(values, changes, strict=True)]
    size, rest = (functools.reduce(operator.add, [v * v for v in numbers]) for numbers in (values, left))
    return rest <= LEFT**2 * size


def _build_system(
    graph: ExprGraph, loops: Loops, residual: Sequence[int], unknowns: Sequence[int], inner: Sequence[int]
) -> NodeSystem:
    """Build a row for each operation: its partial derivatives by the changes of its arguments, less its own change. The
    residual's changes are what makes it zero."""
    system = NodeSystem(graph, {i: i for i in inner} | dict(zip(residual, unknowns, strict=True)))
    minus_one = graph.add_constant(-1.0, F64)
    # Each result has its own direction: what the rules return are partial derivatives.
    seeds = _find_outer_tangents(graph, inner)
    unit = graph.add_constant(1.0, F64)
    seeds |= {i: {} if graph[i].dtype == BOOL else {i: unit} for i in inner}
    partials = ForwardMode(graph, loops, seeds)
    leaves, ends = set(unknowns), set(residual)
    for i in inner:
        if i in leaves or graph[i].dtype == BOOL:
            continue
        if i in ends:
            system.add_right(i, i, "sub")
        else:
            system.add(i, i, minus_one)
        for column, partial in partials.differentiate_node(i).items():
            assert isinstance(column, int)
            if column in ends:
                system.add_right(i, graph.add("mul", (partial, column), F64))
            else:
                system.add(i, column, partial)
    return system

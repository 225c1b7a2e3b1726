"""Sums of products: of a number that changes in a loop with one that does not.

What is linear in numbers from outside keeps that form through sums and products, so that a norm of six components
becomes a few scalars of a loop, times inner products that are computed before it. Products have their factors in one
order, so that equal ones are one node, however they came about."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterable, Mapping, Sequence

from exporter.backends.c_kernel.expression_graph import F64, Expr, ExprGraph

# Longer sums are computed where they stand: their products would cost more than what they save.
MOST_TERMS = 8
# Products of more factors than these are factors themselves.
MOST_FACTORS = 16

# Of the size of constants, what their sum has where they cancel.
ROUNDING = 1e-14

# By number that changes in the loop, the one from outside that it is multiplied with.
Separable = Mapping[int, int]


class SeparableForms:
    """Arithmetic on sums of products, for one loop of a graph.

    It holds for real numbers: factors change places, and zero times anything is zero."""

    def __init__(self, graph: ExprGraph, loop: int) -> None:
        self.graph, self.loop = graph, loop
        self.one = graph.add_constant(1.0, F64)
        self._factors: dict[int, tuple[int, ...]] = {}

    def lift(self, node: int) -> Separable:
        """Return a node as one product: its factors from outside apart from those that change."""
        factors = self._list_factors(node)
        inner = self._multiply_factors(i for i in factors if self.is_inner(i))
        return self._collect([(inner, self._multiply_factors(i for i in factors if not self.is_inner(i)))])

    def hold(self, node: int) -> Separable:
        """Return a node as one product, with nothing taken out of it."""
        return {node: self.one} if self.is_inner(node) else self.lift(node)

    def join(self, form: Separable) -> int:
        """Return the node of a sum of products."""
        products = [Expr(self.graph, inner) * Expr(self.graph, outer) for inner, outer in form.items()]
        return functools.reduce(operator.add, products).index if products else self.graph.add_constant(0.0, F64)

    def add(self, left: Separable, right: Separable, op: str = "add") -> Separable:
        """Add two sums, or subtract one."""
        if op == "sub":
            right = self.negate(right)
        return self._collect([*left.items(), *right.items()])

    def negate(self, form: Separable) -> Separable:
        """Negate a sum."""
        minus_one = self.graph.add_constant(-1.0, F64)
        return {inner: self._multiply_nodes((minus_one, outer)) for inner, outer in form.items()}

    def multiply(self, left: Separable, right: Separable) -> Separable:
        """Multiply two sums."""
        pairs = [
            (self._multiply_nodes((inner, other_inner)), self._multiply_nodes((outer, other_outer)))
            for inner, outer in left.items()
            for other_inner, other_outer in right.items()
        ]
        return self._collect(pairs)

    def divide(self, left: Separable, right: Separable) -> Separable:
        """Divide a sum by the number of another."""
        return self.multiply(left, self.lift(self.graph.add("div", (self.one, self.join(right)), F64)))

    def is_inner(self, node: int) -> bool:
        """Return whether a node changes in the loop."""
        return bool(self.graph.loops[node] >> self.loop & 1)

    def _collect(self, pairs: Sequence[tuple[int, int]]) -> Separable:
        """Add up products with the same number of the loop, and those with the same number from outside."""
        count = len(pairs) + 1
        while len(pairs) < count:
            count = len(pairs)
            pairs = [(inner, outer) for outer, inner in self._add_up((b, a) for a, b in self._add_up(pairs))]
        form = dict(pairs)
        return form if len(form) <= MOST_TERMS else self.hold(self.join(form))

    def _add_up(self, pairs: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
        """Add up the second of pairs with the same first. Of each number so many: three times a third of it is it."""
        counts: dict[int, dict[int, list[float]]] = {}
        for key, value in pairs:
            constant, others = self._split_constant(self._list_factors(value))
            counts.setdefault(key, {}).setdefault(self._multiply_factors(others), []).append(constant)
        sums = {}
        for key, known in counts.items():
            numbers = [(number, math.fsum(several), several) for number, several in known.items()]
            # What is left of constants that cancel is rounding.
            exact = [(n, total) for n, total, several in numbers if abs(total) > ROUNDING * sum(map(abs, several))]
            terms = [Expr(self.graph, number) * total for number, total in exact]
            if terms:
                sums[key] = functools.reduce(operator.add, terms).index
        return list(sums.items())

    def _multiply_nodes(self, nodes: Sequence[int]) -> int:
        return self._multiply_factors(f for node in nodes for f in self._list_factors(node))

    def _multiply_factors(self, factors: Iterable[int]) -> int:
        """Return the product of factors, in their order; constants are one of them."""
        constant, others = self._split_constant(factors)
        if constant == 0.0 or not others:
            return self.graph.add_constant(constant, F64)
        return (functools.reduce(operator.mul, [Expr(self.graph, i) for i in others]) * constant).index

    def _split_constant(self, factors: Iterable[int]) -> tuple[float, list[int]]:
        """Return the product of the constants among factors, and the others in their order."""
        constant, others = 1.0, []
        for i in sorted(factors):
            value = self.graph.constant_value(i)
            if value is None:
                others.append(i)
            else:
                constant *= value
        return constant, others

    def _list_factors(self, node: int) -> tuple[int, ...]:
        """Return the factors of a node, constants among them."""
        pending = [node]
        while pending:
            i = pending[-1]
            parts = self._list_parts(i) if i not in self._factors else ()
            missing = [p for p in parts if p != i and p not in self._factors]
            if missing:
                pending += missing
                continue
            if i not in self._factors:
                factors = tuple(f for p in parts for f in ((p,) if p == i else self._factors[p]))
                self._factors[i] = factors if len(factors) <= MOST_FACTORS else (i,)
            pending.pop()
        return self._factors[node]

    def _list_parts(self, node: int) -> tuple[int, ...]:
        """Return nodes whose product a node is; itself where it is none."""
        op, args = self.graph[node].op, self.graph[node].args
        if op == "neg":
            return (self.graph.add_constant(-1.0, F64), args[0])
        if op == "div" and self.graph.constant_value(args[0]) != 1.0:
            return (args[0], self.graph.add("div", (self.one, args[1]), F64))
        return args if op == "mul" else (node,)

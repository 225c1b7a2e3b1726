"""A node of a graph with Python's operators, so that a rule reads as its formula: ``x / (1 + x * x)``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Union

from exporter.backends.c_kernel.expression_graph import BOOL, ExprGraph

Operand = Union["Expr", float, int]
# Takes and returns expressions.
Formula = Callable[..., "Expr"]


@dataclass(frozen=True, eq=False)
class Expr:
    """One node; a plain number beside it is a constant of its dtype."""

    graph: ExprGraph
    index: int

    @property
    def dtype(self) -> str:
        return self.graph[self.index].dtype

    @property
    def constant(self) -> Any:
        """Return the value of a constant, and None for other nodes."""
        return self.graph.constant_value(self.index)

    def apply(self, op: str, *others: Operand, dtype: str = "", extra: tuple[object, ...] = ()) -> Expr:
        """Return an operation on this node and others, by default of its dtype."""
        args = (self.index, *(self.match(other).index for other in others))
        return Expr(self.graph, self.graph.add(op, args, dtype or self.dtype, extra))

    def match(self, value: Operand) -> Expr:
        """Return a node as it is, and a number as a constant of this node's dtype."""
        return value if isinstance(value, Expr) else Expr(self.graph, self.graph.add_constant(value, self.dtype))

    def cast(self, dtype: str) -> Expr:
        return self.apply("cast", dtype=dtype)

    def equals(self, other: Operand) -> Expr:
        return self.apply("eq", other, dtype=BOOL)

    def __add__(self, other: Operand) -> Expr:
        return self.apply("add", other)

    def __radd__(self, other: Operand) -> Expr:
        return self.match(other) + self

    def __sub__(self, other: Operand) -> Expr:
        return self.apply("sub", other)

    def __rsub__(self, other: Operand) -> Expr:
        return self.match(other) - self

    def __mul__(self, other: Operand) -> Expr:
        return self.apply("mul", other)

    def __rmul__(self, other: Operand) -> Expr:
        return self.match(other) * self

    def __truediv__(self, other: Operand) -> Expr:
        return self.apply("div", other)

    def __rtruediv__(self, other: Operand) -> Expr:
        return self.match(other) / self

    def __pow__(self, other: Operand) -> Expr:
        return self.apply("pow", other)

    def __neg__(self) -> Expr:
        return self.apply("neg")

    def __lt__(self, other: Operand) -> Expr:
        return self.apply("lt", other, dtype=BOOL)

    def __le__(self, other: Operand) -> Expr:
        return self.apply("le", other, dtype=BOOL)

    def __gt__(self, other: Operand) -> Expr:
        return self.match(other) < self

    def __ge__(self, other: Operand) -> Expr:
        return self.match(other) <= self

    def __and__(self, other: Expr) -> Expr:
        return self.apply("and", other, dtype=BOOL)


def where(condition: Expr, first: Operand, second: Operand) -> Expr:
    """Return ``first`` where the condition holds, else ``second``; at least one of both is a node."""
    example = first if isinstance(first, Expr) else second
    assert isinstance(example, Expr)
    first, second = example.match(first), example.match(second)
    return condition.apply("where", first, second, dtype=example.dtype)


def sqrt(x: Expr) -> Expr:
    """Return the square root."""
    return x.apply("sqrt")


def exp(x: Expr) -> Expr:
    """Return the exponential."""
    return x.apply("exp")


def log(x: Expr) -> Expr:
    """Return the natural logarithm."""
    return x.apply("log")

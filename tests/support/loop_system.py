"""Residuals of a loop as expressions, without an archive, evaluated by CasADi and solved by LAPACK."""

from __future__ import annotations

from collections.abc import Sequence

import casadi
import numpy
from casadi_oracle import Oracle, values

from exporter.backends.c_kernel import newton_step
from exporter.backends.c_kernel.expression_graph import F64, Expr, ExprGraph

SIZE = 3


class System:
    """Unknowns ``x`` of a loop and numbers ``a`` from outside."""

    def __init__(self, size: int = SIZE, outer: int = SIZE) -> None:
        self.graph = ExprGraph()
        self.loop = self.graph.new_loop()
        self.unknowns = [self.graph.add_leaf("x", k, F64, 1, 1 << self.loop) for k in range(size)]
        self.x = [Expr(self.graph, i) for i in self.unknowns]
        self.a = [Expr(self.graph, self.graph.add_leaf("a", k, F64, 1)) for k in range(outer)]
        self.symbols = [casadi.MX.sym(f"s{k}") for k in range(size + outer)]

    def build(self, residual: list[Expr], most: int = 10_000) -> tuple[int, ...]:
        return newton_step.build_step(self.graph, {}, [r.index for r in residual], self.unknowns, self.loop, most)

    def express(self, nodes: Sequence[int]) -> casadi.MX:
        leaves = [e.index for e in (*self.x, *self.a)]
        return Oracle(self.graph, {}, dict(zip(leaves, self.symbols, strict=True))).of(nodes)

    def take_step(self, residual: list[Expr], numbers: list[float]) -> tuple[numpy.ndarray, bool]:
        """Return the step, and whether a kernel takes it."""
        *step, trusted = values(self.symbols, self.express(self.build(residual)), numbers).ravel()
        # CasADi takes zero times anything for zero; a kernel looks for what is no number as well.
        return numpy.array(step), bool(trusted) and bool(numpy.isfinite(step).all())

    def compare(self, residual: list[Expr], numbers: list[float]) -> tuple[bool, bool]:
        """Return whether a kernel takes the step, and whether it is that of the matrix."""
        step, is_taken = self.take_step(residual, numbers)
        ends = self.express([r.index for r in residual])
        matrix = casadi.densify(casadi.jacobian(ends, casadi.vertcat(*self.symbols[: len(self.x)])))
        right = -values(self.symbols, ends, numbers).ravel()
        wanted = numpy.linalg.solve(values(self.symbols, matrix, numbers), right)
        return is_taken, numpy.allclose(step, wanted, rtol=1e-8, atol=1e-10)

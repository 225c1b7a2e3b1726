"""Terms as expressions of CasADi, which differentiates them by its own rules (Andersson et al., "CasADi: a software
framework for nonlinear optimization and optimal control", 2019)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import casadi
import numpy

from exporter.backends.c_kernel.expression_graph import LU, NEWTON, SOLVED, ExprGraph
from exporter.backends.c_kernel.newton_loop import NewtonLoop
from exporter.backends.c_kernel.schedule import reachable_nodes

_RULES: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "neg": lambda a: -a,
    "cast": lambda a: a,
    "where": casadi.if_else,
    "max": casadi.fmax,
    "min": casadi.fmin,
    "abs": casadi.fabs,
    "pow": casadi.power,
    "atan2": casadi.atan2,
    "not": casadi.logic_not,
    "and": casadi.logic_and,
    "or": casadi.logic_or,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "exp2": lambda a: casadi.power(2.0, a),
    "log2": lambda a: casadi.log(a) / numpy.log(2.0),
    **{
        name: getattr(casadi, name)
        for name in ("sqrt", "exp", "expm1", "log", "log10", "log1p", "sin", "cos", "tan", "asin", "acos", "atan")
    },
    **{name: getattr(casadi, name) for name in ("sinh", "cosh", "tanh", "asinh", "erf", "sign", "floor", "ceil")},
}


class Oracle:
    """``symbols`` stand for terms that are given: leaves, and the unknowns of loops."""

    def __init__(self, terms: ExprGraph, loops: Mapping[int, NewtonLoop], symbols: dict[int, Any]) -> None:
        self.terms, self.loops = terms, loops
        self.known = dict(symbols)

    def of(self, ends: Sequence[int]) -> Any:
        """A column of expressions."""
        for i in reachable_nodes(self.terms, ends, self.known):
            self.known[i] = self._of(i)
        return casadi.vertcat(*(self.known[i] for i in ends))

    def _of(self, i: int) -> Any:
        term = self.terms[i]
        if term.op == "const":
            return casadi.MX(self.terms.constant_value(i))
        arguments = [self.known[a] for a in term.args]
        if term.op == "pick":
            return arguments[0][term.extra[0]]
        if term.op == LU:
            n = term.extra[0]
            return casadi.reshape(casadi.vertcat(*arguments), n, n).T
        if term.op == SOLVED:
            matrix = arguments[0].T if term.extra[1] else arguments[0]
            return casadi.solve(matrix, casadi.vertcat(*arguments[1:]))
        if term.op == NEWTON:
            return self._root(self.loops[term.extra[0]], term.args)
        return _RULES[term.op](*arguments)

    def _root(self, loop: NewtonLoop, args: Sequence[int]) -> Any:
        """By CasADi's own solver, which brings its derivatives. The first arguments are where it starts."""
        unknowns = casadi.MX.sym("u", loop.size)
        leaves = [i for i in reachable_nodes(self.terms, loop.residual, loop.unknowns) if self.terms[i].op == "leaf"]
        constants = casadi.MX.sym("p", max(len(leaves), 1))
        own = {u: unknowns[k] for k, u in enumerate(loop.unknowns)} | {
            leaf: constants[k] for k, leaf in enumerate(leaves)
        }
        residual = Oracle(self.terms, self.loops, own).of(loop.residual)
        options = {"abstol": 1e-13, "max_iter": 200}
        solver = casadi.rootfinder("r", "newton", {"x": unknowns, "p": constants, "g": residual}, options)
        arguments = casadi.vertcat(*(self.known[i] for i in leaves)) if leaves else casadi.MX(0.0)
        start = casadi.vertcat(*(self.known[a] for a in args[: loop.size]))
        # Behind the unknowns a loop says how it ended: well.
        return casadi.vertcat(solver(x0=start, p=arguments)["x"], casadi.MX.zeros(3))


def values(symbols: Sequence[Any], expression: Any, numbers: Sequence[float]) -> numpy.ndarray:
    function = casadi.Function("f", [casadi.vertcat(*symbols)], [expression])
    return numpy.asarray(function(numpy.asarray(numbers, dtype=float)))

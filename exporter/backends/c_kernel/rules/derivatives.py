"""Partial derivatives of operations, each written as its formula. At kinks the values are those of torch's autograd."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from exporter.backends.c_kernel.expression_graph import BOOL, SEARCHED, Expr, exp, log, sqrt, where
from exporter.backends.c_kernel.symbolic_tensor import RuleTable
from exporter.common.torch_internals import CLAMP_SHARES

# Takes the output and the arguments of an operation; returns the derivatives by the arguments.
DerivativeRule = Callable[..., "Expr | Sequence[Expr | float]"]
# The derivative of each function y = f(x) of one argument; ``differentiates`` adds rules that take more than a line.
DERIVATIVES: RuleTable[DerivativeRule] = RuleTable(
    {
        "exp": lambda y, x: y,
        "exp2": lambda y, x: y * math.log(2.0),
        "expm1": lambda y, x: y + 1.0,
        "log": lambda y, x: 1.0 / x,
        "log2": lambda y, x: 1.0 / math.log(2.0) / x,
        "log10": lambda y, x: 1.0 / math.log(10.0) / x,
        "log1p": lambda y, x: 1.0 / (x + 1.0),
        "sin": lambda y, x: x.apply("cos"),
        "cos": lambda y, x: -x.apply("sin"),
        "tan": lambda y, x: 1.0 + y * y,
        "asin": lambda y, x: 1.0 / sqrt(1.0 - x * x),
        "acos": lambda y, x: -1.0 / sqrt(1.0 - x * x),
        "atan": lambda y, x: 1.0 / (1.0 + x * x),
        "sinh": lambda y, x: x.apply("cosh"),
        "cosh": lambda y, x: x.apply("sinh"),
        "tanh": lambda y, x: 1.0 - y * y,
        "abs": lambda y, x: x.apply("sign"),  # 0 at 0
        "erf": lambda y, x: 2.0 / math.sqrt(math.pi) * exp(-(x * x)),
    }
)
differentiates = DERIVATIVES.register
# Piecewise constant operations: their derivative is zero wherever it exists.
FLAT = {"floor", "ceil", "trunc", "round", "sign", "div_floor", "div_trunc", "lt", "le", "eq", "ne", "and", "or", "xor",
        "not", "isnan", "isinf", "isfinite", "const", "leaf", "singular", SEARCHED}  # fmt: skip


class NoRuleError(Exception):
    """An operation that has no derivative rule."""


def differentiate_operation(op: str, y: Expr, args: Sequence[Expr]) -> list[int]:
    """Return the derivatives of the output ``y`` by the arguments. Raises ``NoRuleError``."""
    if op not in DERIVATIVES:
        raise NoRuleError(op)
    partials = DERIVATIVES[op](y, *args)
    return [y.match(p).index for p in ([partials] if isinstance(partials, Expr) else partials)]


@differentiates("sqrt")
def differentiate_sqrt(y: Expr, x: Expr) -> Expr:
    """Differentiate a square root; the derivative of a norm is 0 where the norm is."""
    slope = 0.5 / y
    return where(y.equals(0.0), 0.0, slope) if y.graph[y.index].extra == ("norm",) else slope


@differentiates("pow")
def differentiate_pow(y: Expr, base: Expr, exponent: Expr) -> list[Expr | float]:
    """Differentiate as torch's pow_backward (torch/csrc/autograd/FunctionsManual.cpp): 0 by the exponent at base 0."""
    by_base: Expr | float = exponent * base ** (exponent - 1.0)
    if exponent.constant == 0.0:
        by_base = 0.0
    elif exponent.constant is None:
        by_base = where(exponent.equals(0.0), 0.0, by_base)
    if y.graph[y.index].extra == ("norm",):
        # The derivative of a norm is 0 where the norm or the number is.
        by_base = where(base.equals(0.0).apply("or", y.equals(0.0), dtype=BOOL), 0.0, y.match(by_base))
    at_zero = base.equals(0.0) & (exponent >= 0.0)
    return [by_base, where(at_zero, 0.0, y * log(base))]


@differentiates("mul")
def differentiate_mul(y: Expr, a: Expr, b: Expr) -> list[Expr]:
    """Differentiate ``a * b``."""
    return [b, a]


@differentiates("div")
def differentiate_div(y: Expr, a: Expr, b: Expr) -> list[Expr]:
    """Differentiate ``a / b``."""
    return [1.0 / b, -(y / b)]


@differentiates("atan2")
def differentiate_atan2(y: Expr, a: Expr, b: Expr) -> list[Expr]:
    """Differentiate ``atan2(a, b)``."""
    square = b * b + a * a
    return [b / square, -(a / square)]


@differentiates("max", "min")
def differentiate_extremum(y: Expr, a: Expr, b: Expr) -> list[Expr]:
    """Differentiate ``max``, ``min``: half by each of two equal ones; at a bound of ``clamp`` as torch does.

    For two bounds that are tensors torch has a rule of its own."""
    node = y.graph[y.index]
    if node.extra == ("of many",):
        raise NoRuleError("amax, amin")
    if node.extra == ("clamp", 2):
        raise NoRuleError("clamp between tensors")
    takes_a, takes_b = (a < b, b < a) if node.op == "min" else (b < a, a < b)
    share = CLAMP_SHARES[node.extra[1]] if node.extra else 0.5
    by_a = where(takes_a, 1.0, where(takes_b, y.match(0.0), share))
    by_b = where(takes_b, 1.0, where(takes_a, y.match(0.0), 1.0 - share))
    return [by_a, by_b]

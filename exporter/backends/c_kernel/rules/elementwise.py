"""Operators on each element: which terms they make. Semantics are torch's on the CPU."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from exporter.backends.c_kernel.dtype_promotion import as_terms, common_dtype, result_dtype, scaled_by
from exporter.backends.c_kernel.expression_graph import BOOL, REAL, Terms
from exporter.backends.c_kernel.registry import Rule, lowers
from exporter.backends.c_kernel.symbolic_tensor import Lowering, Symbol, kind_of

# Of a term table and the arguments' terms, in the kind that the operator computes in.
Scalar = Callable[..., int]


def elementwise(function: Scalar, *, compares: bool = False) -> Rule:
    """``function(terms, kind, *arguments)`` on each element; numbers among the arguments are terms too."""

    def row(lowering: Lowering, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Symbol:
        further = [f"{n}={v}" for n, v in kwargs.items() if v is not None and n != "dtype"]
        if further:
            raise lowering.refused(f"{func} with {', '.join(further)}")
        dtype = result_dtype(lowering, func, args, kwargs)
        values = [v for v in args if isinstance(v, (torch.Tensor, int, float, bool))]
        inner = common_dtype(values) if compares else dtype
        kind = kind_of(inner, lowering.terms.origin)
        given = [as_terms(lowering, v, inner) for v in values]
        return lowering.each(functools.partial(function, lowering.terms, kind), dtype, *given)

    return row


def plain(op: str, *, to_bool: bool = False) -> Rule:
    def function(terms: Terms, kind: str, *args: int) -> int:
        return terms.make(op, args, BOOL if to_bool else kind)

    return elementwise(function, compares=to_bool)


def swapped(op: str) -> Rule:
    return elementwise(lambda terms, kind, a, b: terms.make(op, (b, a), BOOL), compares=True)


def logical(op: str) -> Rule:
    """Of numbers too: each is true where it is not zero."""

    def function(terms: Terms, kind: str, *args: int) -> int:
        return terms.make(op, [terms.make("cast", (a,), BOOL) for a in args], BOOL)

    return elementwise(function, compares=True)


def bitwise(op: str) -> Rule:
    return elementwise(lambda terms, kind, *args: terms.make(op if kind == BOOL else f"bit_{op}", args, kind))


def scaled(op: str) -> Rule:
    """``add`` and ``sub`` with torch's factor ``alpha``."""

    def row(lowering: Lowering, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Symbol:
        dtype = result_dtype(lowering, func, args, kwargs)
        kind = kind_of(dtype, lowering.terms.origin)
        first, second, *rest = args
        alpha = rest[0] if rest else kwargs.get("alpha", 1)
        a, b = as_terms(lowering, first, dtype), as_terms(lowering, second, dtype)
        factor = lowering.terms.constant(alpha, kind)
        a, b = (b, a) if op == "rsub" else (a, b)

        def function(x: int, y: int) -> int:
            if op == "rsub":
                return lowering.terms.make("sub", (x, scaled_by(lowering.terms, kind, y, factor)), kind)
            return lowering.terms.make(op, (x, scaled_by(lowering.terms, kind, y, factor)), kind)

        return lowering.each(function, dtype, a, b)

    return row


@lowers("div")
def divided(lowering: Lowering, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Symbol:
    dtype = result_dtype(lowering, func, args, kwargs)
    kind = kind_of(dtype, lowering.terms.origin)
    mode = kwargs.get("rounding_mode")
    a, b = (as_terms(lowering, v, dtype) for v in args[:2])

    def function(x: int, y: int) -> int:
        terms = lowering.terms
        if mode is None:
            return terms.make("div", (x, y), kind)
        if kind not in REAL:
            return terms.make(f"div_{mode}", (x, y), kind)
        return (
            terms.make(mode, (terms.make("div", (x, y), kind),), kind)
            if mode == "trunc"
            else _floored(terms, kind, x, y)
        )

    return lowering.each(function, dtype, a, b)


def _floored(terms: Terms, kind: str, x: int, y: int) -> int:
    """c10::div_floor_floating (c10/util/generic_math.h)."""
    return terms.make("div_floor", (x, y), kind)


def raised(terms: Terms, kind: str, base: int, exponent: int) -> int:
    """As torch does for an exponent that is one number (aten/src/ATen/native/cpu/PowKernel.cpp)."""
    value = terms.value(exponent)
    if kind in REAL and value is not None:
        one = terms.constant(1.0, kind)
        square = functools.partial(terms.make, "mul", (base, base), kind)
        known: dict[float, Callable[[], int]] = {
            0.5: lambda: terms.make("sqrt", (base,), kind),
            1.0: lambda: base,
            2.0: square,
            3.0: lambda: terms.make("mul", (square(), base), kind),
            -0.5: lambda: terms.make("div", (one, terms.make("sqrt", (base,), kind)), kind),
            -1.0: lambda: terms.make("div", (one, base), kind),
            -2.0: lambda: terms.make("div", (one, square()), kind),
        }
        if value in known:
            return known[value]()
        if value == 0.0:
            return one
    return _powered(terms, kind, base, exponent)


@lowers("pow")
def power(lowering: Lowering, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Symbol:
    """A tensor of exponents is torch's own power for each, whatever stands in it."""
    row = raised if not isinstance(args[1], torch.Tensor) else _powered
    return elementwise(row)(lowering, func, args, kwargs)


def _powered(terms: Terms, kind: str, base: int, exponent: int) -> int:
    return terms.make("pow" if kind in REAL else "pow_int", (base, exponent), kind)


@lowers("where")
def chosen(lowering: Lowering, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Symbol:
    condition, first, second = args
    dtype = common_dtype([first, second])
    kind = kind_of(dtype, lowering.terms.origin)
    given = [
        as_terms(lowering, condition, torch.bool),
        as_terms(lowering, first, dtype),
        as_terms(lowering, second, dtype),
    ]
    return lowering.each(lambda c, a, b: lowering.terms.make("where", (c, a, b), kind), dtype, *given)


@lowers("masked_fill")
def masked(lowering: Lowering, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Symbol:
    value = args[2]
    of = args[0].dtype
    whole = value if isinstance(value, torch.Tensor) else torch.tensor(value, dtype=of)
    kind = kind_of(of, lowering.terms.origin)
    given = [as_terms(lowering, args[1], torch.bool), as_terms(lowering, whole, of), as_terms(lowering, args[0], of)]
    return lowering.each(lambda c, a, b: lowering.terms.make("where", (c, a, b), kind), of, *given)


@lowers("clamp", "clamp_min", "clamp_max")
def clamped(lowering: Lowering, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Symbol:
    name = func.overloadpacket.__name__
    bounds: list[Any] = [
        args[1] if len(args) > 1 else kwargs.get("min"),
        args[2] if len(args) > 2 else kwargs.get("max"),
    ]
    if name == "clamp_max":
        bounds = [None, args[1] if len(args) > 1 else kwargs.get("max")]
    dtype = result_dtype(lowering, func, args, kwargs)
    kind = kind_of(dtype, lowering.terms.origin)
    found = as_terms(lowering, args[0], dtype)
    for op, bound in zip(("max", "min"), bounds, strict=True):
        if bound is not None:
            limit = as_terms(lowering, bound, dtype)
            found = lowering.each(
                lambda x, y, op=op: lowering.terms.make(op, (x, y), kind, ("clamp",)), dtype, found, limit
            )
    return found


@lowers("_to_copy", "to")
def converted(lowering: Lowering, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Symbol:
    found = lowering.cast(
        lowering.symbol(args[0]), result_dtype(lowering, func, args, {k: v for k, v in kwargs.items() if k != "device"})
    )
    # torch's own would be a copy, which may be written to.
    return Symbol(found.ids.clone(), found.dtype)


@lowers("ones_like", "full_like", "empty_like", "new_ones", "new_full", "new_empty")
def filled(lowering: Lowering, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Symbol:
    """``ones_like`` and its kin: shapes and dtypes alone are read."""
    whole = torch.empty(args[0].shape, dtype=args[0].dtype)
    return lowering.symbol(func(whole, *args[1:], **{k: v for k, v in kwargs.items() if k != "device"}))


@lowers("_local_scalar_dense", "is_nonzero")
def read_now(lowering: Lowering, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    raise lowering.refused("a number that is read while the model runs", "numbers that stay in tensors")


def _reciprocal(terms: Terms, kind: str, x: int) -> int:
    return terms.make("div", (terms.constant(1.0, kind), x), kind)


def _sigmoid(terms: Terms, kind: str, x: int) -> int:
    one = terms.constant(1.0, kind)
    below = terms.make("exp", (terms.make("neg", (x,), kind),), kind)
    return terms.make("div", (one, terms.make("add", (one, below), kind)), kind, ("sigmoid",))


def _relu(terms: Terms, kind: str, x: int) -> int:
    """Flat at 0, as torch's own derivative of it."""
    zero = terms.constant(0, kind)
    return terms.make("where", (terms.make("le", (x, zero), BOOL), zero, x), kind)


def _tests(op: str) -> Rule:
    return elementwise(lambda terms, kind, x: terms.make(op, (x,), BOOL), compares=True)


ALONE = (
    "neg", "abs", "sqrt", "exp", "log", "log2", "log10", "log1p", "expm1", "sin", "cos", "tan", "asin", "acos", "atan",
    "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "floor", "ceil", "trunc", "round", "sign", "erf", "erfc", "exp2",
    "lgamma",
)  # fmt: skip

# Operators that are one function of each element.
_ELEMENTWISE: dict[str, Rule] = {
    **{name: plain(name) for name in ALONE},
    "sgn": plain("sign"),
    "reciprocal": elementwise(_reciprocal),
    "rsqrt": elementwise(lambda t, k, x: _reciprocal(t, k, t.make("sqrt", (x,), k))),
    "square": elementwise(lambda t, k, x: t.make("mul", (x, x), k)),
    "sigmoid": elementwise(_sigmoid),
    "relu": elementwise(_relu),
    "mul": plain("mul"),
    "multiply": plain("mul"),
    "add": scaled("add"),
    "sub": scaled("sub"),
    "rsub": scaled("rsub"),
    "floor_divide": elementwise(_floored),
    "remainder": plain("remainder"),
    "fmod": plain("fmod"),
    "atan2": plain("atan2"),
    "hypot": plain("hypot"),
    "copysign": plain("copysign"),
    "maximum": plain("max"),
    "minimum": plain("min"),
    "fmax": plain("fmax"),
    "fmin": plain("fmin"),
    "lt": plain("lt", to_bool=True),
    "le": plain("le", to_bool=True),
    "gt": swapped("lt"),
    "ge": swapped("le"),
    "eq": plain("eq", to_bool=True),
    "ne": plain("ne", to_bool=True),
    "logical_and": logical("and"),
    "logical_or": logical("or"),
    "logical_xor": logical("xor"),
    "logical_not": logical("not"),
    "bitwise_and": bitwise("and"),
    "bitwise_or": bitwise("or"),
    "bitwise_xor": bitwise("xor"),
    "bitwise_not": elementwise(lambda t, k, x: t.make("not" if k == BOOL else "bit_not", (x,), k)),
    "isnan": _tests("isnan"),
    "isinf": _tests("isinf"),
    "isfinite": _tests("isfinite"),
}
for _name, _rule in _ELEMENTWISE.items():
    lowers(_name)(_rule)

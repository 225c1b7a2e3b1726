"""Lowering rules of elementwise operators. Semantics are torch's on the CPU."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from exporter.backends.c_kernel.expression_graph import BOOL, REAL, Expr, Formula, exp, sqrt, where
from exporter.backends.c_kernel.symbolic_tensor import OperatorCall, Rule, SymbolicTensor, lowers, promote_dtypes


def lower_elementwise(formula: Formula, *, compares: bool = False) -> Rule:
    """Make the rule that applies a formula to each element, also of plain numbers; one that compares gives booleans."""

    def lower(call: OperatorCall) -> SymbolicTensor:
        further = [f"{n}={v}" for n, v in call.kwargs.items() if v is not None and n != "dtype"]
        if further:
            raise call.dispatch.unsupported_error(f"{call.func} with {', '.join(further)}")
        dtype = call.infer_dtype()
        values = [v for v in call.args if isinstance(v, (torch.Tensor, int, float, bool))]
        inner = promote_dtypes(values) if compares else dtype
        return call.dispatch.map_expressions(formula, dtype, *(call.cast(v, inner) for v in values))

    return lower


def elementwise(*names: str, compares: bool = False) -> Callable[[Formula], Formula]:
    """Register a formula of one element as the rule of operators: ``@elementwise("square")``."""

    def register(formula: Formula) -> Formula:
        lowers(*names)(lower_elementwise(formula, compares=compares))
        return formula

    return register


@lowers("add", "sub", "rsub")
def lower_add(call: OperatorCall) -> SymbolicTensor:
    """Lower ``add.Tensor(self, other, *, alpha=1)``, ``sub.Tensor``, ``rsub.Tensor``: self plus alpha times other."""
    alpha = call.argument(2, "alpha", 1)

    def combine(x: Expr, y: Expr) -> Expr:
        x, y = (y, x) if call.name == "rsub" else (x, y)
        scaled = y if alpha == 1 else y * alpha
        return x + scaled if call.name == "add" else x - scaled

    return call.apply(combine, call.infer_dtype(), *call.args[:2])


@lowers("div")
def lower_div(call: OperatorCall) -> SymbolicTensor:
    """Lower ``div.Tensor_mode(self, other, *, rounding_mode)`` and ``div.Tensor``."""
    mode = call.kwargs.get("rounding_mode")

    def divide(x: Expr, y: Expr) -> Expr:
        if mode == "trunc" and x.dtype in REAL:
            return (x / y).apply("trunc")
        return x / y if mode is None else x.apply(f"div_{mode}", y)

    return call.apply(divide, call.infer_dtype(), *call.args[:2])


# Powers with one number as exponent, as torch has them (aten/src/ATen/native/cpu/PowKernel.cpp).
_POWERS: dict[float, Formula] = {
    0.0: lambda x: x.match(1.0),
    0.5: sqrt,
    1.0: lambda x: x,
    2.0: lambda x: x * x,
    3.0: lambda x: x * x * x,
    -0.5: lambda x: 1.0 / sqrt(x),
    -1.0: lambda x: 1.0 / x,
    -2.0: lambda x: 1.0 / (x * x),
}


def raise_to_power(base: Expr, exponent: Expr) -> Expr:
    """Return a power as torch does for one number as exponent."""
    if base.dtype in REAL and exponent.constant in _POWERS:
        return _POWERS[exponent.constant](base)
    return raise_to_any_power(base, exponent)


def raise_to_any_power(base: Expr, exponent: Expr) -> Expr:
    """Return torch's general power."""
    return base**exponent if base.dtype in REAL else base.apply("pow_int", exponent)


@lowers("pow")
def lower_pow(call: OperatorCall) -> SymbolicTensor:
    """Lower ``pow``; a tensor of exponents is torch's general power for each, whatever their values."""
    formula = raise_to_any_power if isinstance(call.args[1], torch.Tensor) else raise_to_power
    return lower_elementwise(formula)(call)


@lowers("where")
def lower_where(call: OperatorCall) -> SymbolicTensor:
    """Lower ``where``."""
    condition, *values = call.args
    dtype = promote_dtypes(values)
    operands = (call.cast(condition, torch.bool), *(call.cast(v, dtype) for v in values))
    return call.dispatch.map_expressions(where, dtype, *operands)


@lowers("masked_fill")
def lower_masked_fill(call: OperatorCall) -> SymbolicTensor:
    """Lower ``masked_fill(self, mask, value)``."""
    value, mask, filler = call.args
    operands = (call.cast(mask, torch.bool), call.cast(filler, value.dtype), call.cast(value, value.dtype))
    return call.dispatch.map_expressions(where, value.dtype, *operands)


@lowers("clamp", "clamp_min", "clamp_max")
def lower_clamp(call: OperatorCall) -> SymbolicTensor:
    """Lower ``clamp(self, min, max)``, ``clamp_min(self, min)``, ``clamp_max(self, max)``."""
    only_maximum = call.name == "clamp_max"
    bounds = {"max": None if only_maximum else call.argument(1, "min"), "min": call.argument(2 - only_maximum, "max")}
    dtype = call.infer_dtype()
    result = call.cast(call.args[0], dtype)
    # How many of its bounds are tensors decides its derivative.
    extra = ("clamp", sum(isinstance(bound, torch.Tensor) for bound in bounds.values()))
    for op, bound in bounds.items():
        if bound is not None:
            result = call.apply(lambda x, y, op=op: x.apply(op, y, extra=extra), dtype, result, bound)
    return result


@lowers("_to_copy", "to")
def lower_to_copy(call: OperatorCall) -> SymbolicTensor:
    """Lower a conversion to another dtype."""
    result = call.cast(call.args[0], call.infer_dtype())
    # torch makes a copy, which may be written to.
    return SymbolicTensor(result.ids.clone(), result.dtype)


@lowers("copy")
def lower_copy(call: OperatorCall) -> SymbolicTensor:
    """Lower the numbers of another tensor, in the shape and the dtype of the first."""
    symbol = call.cast(call.args[1], call.args[0].dtype)
    return SymbolicTensor(symbol.ids.expand(call.args[0].shape), symbol.dtype)


@lowers("ones_like", "full_like", "empty_like", "new_ones", "new_full", "new_empty")
def lower_full(call: OperatorCall) -> SymbolicTensor:
    """Lower ``ones_like`` and its kin, which read shapes and dtypes alone."""
    example = torch.empty(call.args[0].shape, dtype=call.args[0].dtype)
    keywords = {k: v for k, v in call.kwargs.items() if k != "device"}
    return call.dispatch.to_symbol(call.func(example, *call.args[1:], **keywords))


@lowers("_local_scalar_dense", "is_nonzero")
def lower_item(call: OperatorCall) -> Any:
    """Raise ``UnsupportedError``: a kernel reads no numbers while the model runs."""
    raise call.dispatch.unsupported_error("a number that is read while the model runs", "numbers that stay in tensors")


@elementwise("reciprocal")
def invert(x: Expr) -> Expr:
    """Lower ``reciprocal(self)``."""
    return 1.0 / x


@elementwise("rsqrt")
def invert_root(x: Expr) -> Expr:
    """Lower ``rsqrt(self)``."""
    return 1.0 / sqrt(x)


@elementwise("square")
def multiply_by_itself(x: Expr) -> Expr:
    """Lower ``square(self)``."""
    return x * x


@elementwise("sigmoid")
def evaluate_sigmoid(x: Expr) -> Expr:
    """Lower ``sigmoid(self)``; the node says what it is, as the chain rule would give 0 times infinity in it."""
    return x.match(1.0).apply("div", 1.0 + exp(-x), extra=("sigmoid",))


@elementwise("relu")
def rectify(x: Expr) -> Expr:
    """Lower ``relu(self)``; flat at 0, as torch's own derivative is."""
    return where(x <= 0, 0, x)


@elementwise("gt", compares=True)
def is_greater(a: Expr, b: Expr) -> Expr:
    """Lower ``gt(self, other)``."""
    return b < a


@elementwise("ge", compares=True)
def is_greater_or_equal(a: Expr, b: Expr) -> Expr:
    """Lower ``ge(self, other)``."""
    return b <= a


UNARY = (
    "neg", "abs", "sqrt", "exp", "log", "log2", "log10", "log1p", "expm1", "sin", "cos", "tan", "asin", "acos", "atan",
    "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "floor", "ceil", "trunc", "round", "sign", "erf", "erfc", "exp2",
    "lgamma",
)  # fmt: skip
# Operators that are one operation of a kernel, by torch's names.
_SAME = {
    **dict.fromkeys(UNARY),
    "sgn": "sign", "mul": None, "multiply": "mul", "floor_divide": "div_floor", "remainder": None, "fmod": None,
    "atan2": None, "hypot": None, "copysign": None, "maximum": "max", "minimum": "min", "fmax": None, "fmin": None,
}  # fmt: skip
_PREDICATES = ("lt", "le", "eq", "ne", "isnan", "isinf", "isfinite")
_LOGICAL = ("and", "or", "xor", "not")


def _apply(op: str, x: Expr, *others: Expr) -> Expr:
    return x.apply(op, *others)


def _compare(op: str, x: Expr, *others: Expr) -> Expr:
    return x.apply(op, *others, dtype=BOOL)


def _combine_truth(op: str, x: Expr, *others: Expr) -> Expr:
    """Return a logical operation; a number is true where it is not zero."""
    return x.cast(BOOL).apply(op, *(other.cast(BOOL) for other in others))


def _combine_bits(op: str, x: Expr, *others: Expr) -> Expr:
    """Return a bitwise operation, which is a logical one of booleans."""
    return x.apply(op if x.dtype == BOOL else f"bit_{op}", *others)


for _name, _op in _SAME.items():
    elementwise(_name)(functools.partial(_apply, _op or _name))
for _name in _PREDICATES:
    elementwise(_name, compares=True)(functools.partial(_compare, _name))
for _name in _LOGICAL:
    elementwise(f"logical_{_name}", compares=True)(functools.partial(_combine_truth, _name))
    elementwise(f"bitwise_{_name}")(functools.partial(_combine_bits, _name))

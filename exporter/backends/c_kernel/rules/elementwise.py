"""Lowering rules of elementwise operators. Semantics are torch's on the CPU."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from exporter.backends.c_kernel.dtype_promotion import cast_to_symbol, infer_dtype, promote_dtypes
from exporter.backends.c_kernel.expression import Expr, exp, sqrt, where
from exporter.backends.c_kernel.expression_graph import BOOL, REAL
from exporter.backends.c_kernel.registry import Rule, lowers
from exporter.backends.c_kernel.symbolic_tensor import SymbolicDispatch, SymbolicTensor

# The formula of one element: takes and returns expressions.
Formula = Callable[..., Expr]


def lower_elementwise(formula: Formula, *, compares: bool = False) -> Rule:
    """Make the rule that applies a formula to each element, also of plain numbers; one that compares gives booleans."""

    def lower(lowering: SymbolicDispatch, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> SymbolicTensor:
        further = [f"{n}={v}" for n, v in kwargs.items() if v is not None and n != "dtype"]
        if further:
            raise lowering.unsupported_error(f"{func} with {', '.join(further)}")
        dtype = infer_dtype(lowering, func, args, kwargs)
        values = [v for v in args if isinstance(v, (torch.Tensor, int, float, bool))]
        inner = promote_dtypes(values) if compares else dtype
        return lowering.map_expressions(formula, dtype, *(cast_to_symbol(lowering, v, inner) for v in values))

    return lower


def elementwise(*names: str, compares: bool = False) -> Callable[[Formula], Formula]:
    """Register a formula of one element as the rule of operators: ``@elementwise("square")``."""

    def register(formula: Formula) -> Formula:
        lowers(*names)(lower_elementwise(formula, compares=compares))
        return formula

    return register


@lowers("add", "sub", "rsub")
def lower_add(dispatch: SymbolicDispatch, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> SymbolicTensor:
    """Lower ``add.Tensor(self, other, *, alpha=1)``, ``sub.Tensor``, ``rsub.Tensor``: self plus alpha times other."""
    dtype = infer_dtype(dispatch, func, args, kwargs)
    name = func.overloadpacket.__name__
    first, second, *rest = args
    alpha = rest[0] if rest else kwargs.get("alpha", 1)
    a, b = cast_to_symbol(dispatch, first, dtype), cast_to_symbol(dispatch, second, dtype)

    def combine(x: Expr, y: Expr) -> Expr:
        x, y = (y, x) if name == "rsub" else (x, y)
        scaled = y if alpha == 1 else y * alpha
        return x + scaled if name == "add" else x - scaled

    return dispatch.map_expressions(combine, dtype, a, b)


@lowers("div")
def lower_div(dispatch: SymbolicDispatch, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> SymbolicTensor:
    """Lower ``div.Tensor_mode(self, other, *, rounding_mode)`` and ``div.Tensor``."""
    dtype = infer_dtype(dispatch, func, args, kwargs)
    mode = kwargs.get("rounding_mode")
    a, b = (cast_to_symbol(dispatch, v, dtype) for v in args[:2])

    def divide(x: Expr, y: Expr) -> Expr:
        if mode == "trunc" and x.dtype in REAL:
            return (x / y).apply("trunc")
        return x / y if mode is None else x.apply(f"div_{mode}", y)

    return dispatch.map_expressions(divide, dtype, a, b)


def raise_to_power(base: Expr, exponent: Expr) -> Expr:
    """Return a power as torch does for one number as exponent (aten/src/ATen/native/cpu/PowKernel.cpp)."""
    if base.dtype in REAL and exponent.constant is not None:
        special_cases: dict[float, Callable[[], Expr]] = {
            0.0: lambda: base.match(1.0),
            0.5: lambda: sqrt(base),
            1.0: lambda: base,
            2.0: lambda: base * base,
            3.0: lambda: base * base * base,
            -0.5: lambda: 1.0 / sqrt(base),
            -1.0: lambda: 1.0 / base,
            -2.0: lambda: 1.0 / (base * base),
        }
        if exponent.constant in special_cases:
            return special_cases[exponent.constant]()
    return raise_to_any_power(base, exponent)


def raise_to_any_power(base: Expr, exponent: Expr) -> Expr:
    """Return torch's general power."""
    return base**exponent if base.dtype in REAL else base.apply("pow_int", exponent)


@lowers("pow")
def lower_pow(dispatch: SymbolicDispatch, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> SymbolicTensor:
    """Lower ``pow``; a tensor of exponents is torch's general power for each, whatever their values."""
    formula = raise_to_any_power if isinstance(args[1], torch.Tensor) else raise_to_power
    return lower_elementwise(formula)(dispatch, func, args, kwargs)


@lowers("where")
def lower_where(
    dispatch: SymbolicDispatch, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> SymbolicTensor:
    """Lower ``where``."""
    condition, first, second = args
    dtype = promote_dtypes([first, second])
    operands = [
        cast_to_symbol(dispatch, condition, torch.bool),
        cast_to_symbol(dispatch, first, dtype),
        cast_to_symbol(dispatch, second, dtype),
    ]
    return dispatch.map_expressions(where, dtype, *operands)


@lowers("masked_fill")
def lower_masked_fill(
    dispatch: SymbolicDispatch, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> SymbolicTensor:
    """Lower ``masked_fill``."""
    value = args[2]
    dtype = args[0].dtype
    filler = value if isinstance(value, torch.Tensor) else torch.tensor(value, dtype=dtype)
    operands = [
        cast_to_symbol(dispatch, args[1], torch.bool),
        cast_to_symbol(dispatch, filler, dtype),
        cast_to_symbol(dispatch, args[0], dtype),
    ]
    return dispatch.map_expressions(where, dtype, *operands)


@lowers("clamp", "clamp_min", "clamp_max")
def lower_clamp(
    dispatch: SymbolicDispatch, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> SymbolicTensor:
    """Lower ``clamp``, ``clamp_min``, ``clamp_max``."""
    name = func.overloadpacket.__name__
    bounds: list[Any] = [
        args[1] if len(args) > 1 else kwargs.get("min"),
        args[2] if len(args) > 2 else kwargs.get("max"),
    ]
    if name == "clamp_max":
        bounds = [None, args[1] if len(args) > 1 else kwargs.get("max")]
    dtype = infer_dtype(dispatch, func, args, kwargs)
    result = cast_to_symbol(dispatch, args[0], dtype)
    for op, bound in zip(("max", "min"), bounds, strict=True):
        if bound is not None:
            limit = cast_to_symbol(dispatch, bound, dtype)
            result = dispatch.map_expressions(
                lambda x, y, op=op: x.apply(op, y, extra=("clamp",)), dtype, result, limit
            )
    return result


@lowers("_to_copy", "to")
def lower_to_copy(
    dispatch: SymbolicDispatch, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> SymbolicTensor:
    """Lower a conversion to another dtype."""
    result = dispatch.cast(
        dispatch.to_symbol(args[0]),
        infer_dtype(dispatch, func, args, {k: v for k, v in kwargs.items() if k != "device"}),
    )
    # torch makes a copy, which may be written to.
    return SymbolicTensor(result.ids.clone(), result.dtype)


@lowers("ones_like", "full_like", "empty_like", "new_ones", "new_full", "new_empty")
def lower_full(dispatch: SymbolicDispatch, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> SymbolicTensor:
    """Lower ``ones_like`` and its kin, which read shapes and dtypes alone."""
    example = torch.empty(args[0].shape, dtype=args[0].dtype)
    return dispatch.to_symbol(func(example, *args[1:], **{k: v for k, v in kwargs.items() if k != "device"}))


@lowers("_local_scalar_dense", "is_nonzero")
def lower_item(dispatch: SymbolicDispatch, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Raise ``UnsupportedError``: a kernel reads no numbers while the model runs."""
    raise dispatch.unsupported_error("a number that is read while the model runs", "numbers that stay in tensors")


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

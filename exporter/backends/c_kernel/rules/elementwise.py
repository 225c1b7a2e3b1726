"""Lowering rules of elementwise operators, and the table of all rules. Semantics are torch's on the CPU."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from exporter.backends.c_kernel.dtype_promotion import add_scaled, cast_to_symbol, infer_dtype, promote_dtypes
from exporter.backends.c_kernel.expression_graph import BOOL, REAL, ExprGraph
from exporter.backends.c_kernel.registry import Rule, lowers
from exporter.backends.c_kernel.symbolic_tensor import SymbolicDispatch, SymbolicTensor, get_dtype_name

# Makes a node from the graph, the dtype that the operator computes in, and the arguments' nodes.
ScalarRule = Callable[..., int]


def lower_elementwise(function: ScalarRule, *, compares: bool = False) -> Rule:
    """Make the rule that applies ``function(graph, dtype, *arguments)`` to each element, also of plain numbers."""

    def lower(lowering: SymbolicDispatch, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> SymbolicTensor:
        further = [f"{n}={v}" for n, v in kwargs.items() if v is not None and n != "dtype"]
        if further:
            raise lowering.unsupported_error(f"{func} with {', '.join(further)}")
        dtype = infer_dtype(lowering, func, args, kwargs)
        values = [v for v in args if isinstance(v, (torch.Tensor, int, float, bool))]
        inner = promote_dtypes(values) if compares else dtype
        kind = get_dtype_name(inner, lowering.graph.origin)
        given = [cast_to_symbol(lowering, v, inner) for v in values]
        return lowering.map_elements(functools.partial(function, lowering.graph, kind), dtype, *given)

    return lower


def lower_to_op(op: str, *, to_bool: bool = False) -> Rule:
    """Make the rule of an operator that is one operation."""

    def add_node(graph: ExprGraph, dtype: str, *args: int) -> int:
        return graph.add(op, args, BOOL if to_bool else dtype)

    return lower_elementwise(add_node, compares=to_bool)


def lower_reversed_comparison(op: str) -> Rule:
    """Make the rule of a comparison that is ``op`` with its arguments exchanged."""
    return lower_elementwise(lambda graph, dtype, a, b: graph.add(op, (b, a), BOOL), compares=True)


def lower_logical(op: str) -> Rule:
    """Make the rule of a logical operator; a number is true where it is not zero."""

    def add_node(graph: ExprGraph, dtype: str, *args: int) -> int:
        return graph.add(op, [graph.add("cast", (a,), BOOL) for a in args], BOOL)

    return lower_elementwise(add_node, compares=True)


def lower_bitwise(op: str) -> Rule:
    """Make the rule of a bitwise operator, which is a logical one of booleans."""
    return lower_elementwise(lambda graph, dtype, *args: graph.add(op if dtype == BOOL else f"bit_{op}", args, dtype))


def lower_add_sub(op: str) -> Rule:
    """Make the rule of ``add`` or ``sub`` with torch's factor ``alpha``."""

    def lower(lowering: SymbolicDispatch, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> SymbolicTensor:
        dtype = infer_dtype(lowering, func, args, kwargs)
        kind = get_dtype_name(dtype, lowering.graph.origin)
        first, second, *rest = args
        alpha = rest[0] if rest else kwargs.get("alpha", 1)
        a, b = cast_to_symbol(lowering, first, dtype), cast_to_symbol(lowering, second, dtype)
        factor = lowering.graph.add_constant(alpha, kind)
        a, b = (b, a) if op == "rsub" else (a, b)

        def function(x: int, y: int) -> int:
            if op == "rsub":
                return lowering.graph.add("sub", (x, add_scaled(lowering.graph, kind, y, factor)), kind)
            return lowering.graph.add(op, (x, add_scaled(lowering.graph, kind, y, factor)), kind)

        return lowering.map_elements(function, dtype, a, b)

    return lower


@lowers("div")
def lower_div(dispatch: SymbolicDispatch, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> SymbolicTensor:
    """Lower a division, in any rounding mode."""
    dtype = infer_dtype(dispatch, func, args, kwargs)
    dtype_name = get_dtype_name(dtype, dispatch.graph.origin)
    mode = kwargs.get("rounding_mode")
    a, b = (cast_to_symbol(dispatch, v, dtype) for v in args[:2])

    def add_node(x: int, y: int) -> int:
        graph = dispatch.graph
        if mode is None:
            return graph.add("div", (x, y), dtype_name)
        if dtype_name not in REAL:
            return graph.add(f"div_{mode}", (x, y), dtype_name)
        return (
            graph.add(mode, (graph.add("div", (x, y), dtype_name),), dtype_name)
            if mode == "trunc"
            else _add_floor_divide(graph, dtype_name, x, y)
        )

    return dispatch.map_elements(add_node, dtype, a, b)


def _add_floor_divide(graph: ExprGraph, dtype: str, x: int, y: int) -> int:
    """Add a division like c10::div_floor_floating (c10/util/generic_math.h)."""
    return graph.add("div_floor", (x, y), dtype)


def lower_pow(graph: ExprGraph, dtype: str, base: int, exponent: int) -> int:
    """Lower a power as torch does for one number as exponent (aten/src/ATen/native/cpu/PowKernel.cpp)."""
    value = graph.constant_value(exponent)
    if dtype in REAL and value is not None:
        unit = graph.add_constant(1.0, dtype)
        square = functools.partial(graph.add, "mul", (base, base), dtype)
        special_cases: dict[float, Callable[[], int]] = {
            0.5: lambda: graph.add("sqrt", (base,), dtype),
            1.0: lambda: base,
            2.0: square,
            3.0: lambda: graph.add("mul", (square(), base), dtype),
            -0.5: lambda: graph.add("div", (unit, graph.add("sqrt", (base,), dtype)), dtype),
            -1.0: lambda: graph.add("div", (unit, base), dtype),
            -2.0: lambda: graph.add("div", (unit, square()), dtype),
        }
        if value in special_cases:
            return special_cases[value]()
        if value == 0.0:
            return unit
    return _add_pow(graph, dtype, base, exponent)


@lowers("pow")
def lower_tensor_pow(
    dispatch: SymbolicDispatch, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> SymbolicTensor:
    """Lower a power; a tensor of exponents is torch's general power for each, whatever their values."""
    add_node = lower_pow if not isinstance(args[1], torch.Tensor) else _add_pow
    return lower_elementwise(add_node)(dispatch, func, args, kwargs)


def _add_pow(graph: ExprGraph, dtype: str, base: int, exponent: int) -> int:
    return graph.add("pow" if dtype in REAL else "pow_int", (base, exponent), dtype)


@lowers("where")
def lower_where(
    dispatch: SymbolicDispatch, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> SymbolicTensor:
    """Lower ``where``."""
    condition, first, second = args
    dtype = promote_dtypes([first, second])
    dtype_name = get_dtype_name(dtype, dispatch.graph.origin)
    operands = [
        cast_to_symbol(dispatch, condition, torch.bool),
        cast_to_symbol(dispatch, first, dtype),
        cast_to_symbol(dispatch, second, dtype),
    ]
    return dispatch.map_elements(lambda c, a, b: dispatch.graph.add("where", (c, a, b), dtype_name), dtype, *operands)


@lowers("masked_fill")
def lower_masked_fill(
    dispatch: SymbolicDispatch, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> SymbolicTensor:
    """Lower ``masked_fill``."""
    value = args[2]
    dtype = args[0].dtype
    filler = value if isinstance(value, torch.Tensor) else torch.tensor(value, dtype=dtype)
    dtype_name = get_dtype_name(dtype, dispatch.graph.origin)
    operands = [
        cast_to_symbol(dispatch, args[1], torch.bool),
        cast_to_symbol(dispatch, filler, dtype),
        cast_to_symbol(dispatch, args[0], dtype),
    ]
    return dispatch.map_elements(lambda c, a, b: dispatch.graph.add("where", (c, a, b), dtype_name), dtype, *operands)


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
    dtype_name = get_dtype_name(dtype, dispatch.graph.origin)
    result = cast_to_symbol(dispatch, args[0], dtype)
    for op, bound in zip(("max", "min"), bounds, strict=True):
        if bound is not None:
            limit = cast_to_symbol(dispatch, bound, dtype)
            result = dispatch.map_elements(
                lambda x, y, op=op: dispatch.graph.add(op, (x, y), dtype_name, ("clamp",)), dtype, result, limit
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


def _add_reciprocal(graph: ExprGraph, dtype: str, x: int) -> int:
    return graph.add("div", (graph.add_constant(1.0, dtype), x), dtype)


def _add_sigmoid(graph: ExprGraph, dtype: str, x: int) -> int:
    unit = graph.add_constant(1.0, dtype)
    exponential = graph.add("exp", (graph.add("neg", (x,), dtype),), dtype)
    return graph.add("div", (unit, graph.add("add", (unit, exponential), dtype)), dtype, ("sigmoid",))


def _add_relu(graph: ExprGraph, dtype: str, x: int) -> int:
    """Add a node that is flat at 0, as torch's own derivative is."""
    zero = graph.add_constant(0, dtype)
    return graph.add("where", (graph.add("le", (x, zero), BOOL), zero, x), dtype)


def _lower_predicate(op: str) -> Rule:
    return lower_elementwise(lambda graph, dtype, x: graph.add(op, (x,), BOOL), compares=True)


UNARY = (
    "neg", "abs", "sqrt", "exp", "log", "log2", "log10", "log1p", "expm1", "sin", "cos", "tan", "asin", "acos", "atan",
    "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "floor", "ceil", "trunc", "round", "sign", "erf", "erfc", "exp2",
    "lgamma",
)  # fmt: skip

# Operators that are one function of each element.
_ELEMENTWISE: dict[str, Rule] = {
    **{name: lower_to_op(name) for name in UNARY},
    "sgn": lower_to_op("sign"),
    "reciprocal": lower_elementwise(_add_reciprocal),
    "rsqrt": lower_elementwise(lambda t, k, x: _add_reciprocal(t, k, t.add("sqrt", (x,), k))),
    "square": lower_elementwise(lambda t, k, x: t.add("mul", (x, x), k)),
    "sigmoid": lower_elementwise(_add_sigmoid),
    "relu": lower_elementwise(_add_relu),
    "mul": lower_to_op("mul"),
    "multiply": lower_to_op("mul"),
    "add": lower_add_sub("add"),
    "sub": lower_add_sub("sub"),
    "rsub": lower_add_sub("rsub"),
    "floor_divide": lower_elementwise(_add_floor_divide),
    "remainder": lower_to_op("remainder"),
    "fmod": lower_to_op("fmod"),
    "atan2": lower_to_op("atan2"),
    "hypot": lower_to_op("hypot"),
    "copysign": lower_to_op("copysign"),
    "maximum": lower_to_op("max"),
    "minimum": lower_to_op("min"),
    "fmax": lower_to_op("fmax"),
    "fmin": lower_to_op("fmin"),
    "lt": lower_to_op("lt", to_bool=True),
    "le": lower_to_op("le", to_bool=True),
    "gt": lower_reversed_comparison("lt"),
    "ge": lower_reversed_comparison("le"),
    "eq": lower_to_op("eq", to_bool=True),
    "ne": lower_to_op("ne", to_bool=True),
    "logical_and": lower_logical("and"),
    "logical_or": lower_logical("or"),
    "logical_xor": lower_logical("xor"),
    "logical_not": lower_logical("not"),
    "bitwise_and": lower_bitwise("and"),
    "bitwise_or": lower_bitwise("or"),
    "bitwise_xor": lower_bitwise("xor"),
    "bitwise_not": lower_elementwise(lambda t, k, x: t.add("not" if k == BOOL else "bit_not", (x,), k)),
    "isnan": _lower_predicate("isnan"),
    "isinf": _lower_predicate("isinf"),
    "isfinite": _lower_predicate("isfinite"),
}
for _name, _rule in _ELEMENTWISE.items():
    lowers(_name)(_rule)

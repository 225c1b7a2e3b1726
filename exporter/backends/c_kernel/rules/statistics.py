"""Lowering rules of variances."""

from __future__ import annotations

import math
from typing import Any

import torch

from exporter.backends.c_kernel.rules.ordering import drop_dims
from exporter.backends.c_kernel.symbolic_tensor import OperatorCall, SymbolicTensor, lowers


@lowers("var", "std", "var_mean", "std_mean")
def lower_variance(call: OperatorCall) -> torch.Tensor | tuple[torch.Tensor, ...]:
    """Lower variances, their roots, and both with the means."""
    symbol, (dims, correction, keepdim) = call.dispatch.to_symbol(call.args[0]), _read_options(call)
    if not symbol.ids.ndim:
        symbol, dims, keepdim = SymbolicTensor(symbol.ids.reshape(1), symbol.dtype), [0], False
    ids = symbol.ids
    dims = list(range(ids.ndim)) if dims is None or dims == [] else [dims] if isinstance(dims, int) else list(dims)
    divisor = float(max(math.prod(ids.shape[d] for d in dims) - correction, 0))
    with call.dispatch:
        mean = torch.mean(symbol, dims, keepdim=True)
        squares = torch.square(symbol - mean)
        result = torch.sum(squares, dims, keepdim=True)
    result = call.apply(lambda x: x / divisor, symbol.dtype, result)
    if call.name.startswith("std"):
        # Its derivative is 0 where all numbers are equal.
        result = call.apply(lambda x: x.apply("sqrt", extra=("norm",)), symbol.dtype, result)
    if not keepdim:
        result, mean = (drop_dims(v, dims) for v in (result, call.dispatch.to_symbol(mean)))
    return (result, mean) if call.name.endswith("mean") else result


def _read_options(call: OperatorCall) -> tuple[Any, float, bool]:
    """Return the dimensions, what the count is corrected by, and whether they stay, as the overload takes them."""
    if call.func._overloadname == "correction":
        correction = call.kwargs.get("correction")
        return call.argument(1, "dim"), 1 if correction is None else correction, call.kwargs.get("keepdim", False)
    has_dims = "dim" in call.func._overloadname
    dims = call.argument(1, "dim") if has_dims else None
    correction = float(call.argument(1 + has_dims, "unbiased", True))
    return dims, correction, call.argument(3, "keepdim", False) if has_dims else False

"""Dtype promotion as torch does it, and casts of arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_map

from exporter.backends.c_kernel.expression_graph import ExprGraph
from exporter.backends.c_kernel.symbolic_tensor import SymbolicDispatch, SymbolicTensor


def infer_dtype(dispatch: SymbolicDispatch, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.dtype:
    """Return the dtype that torch gives the result, from a run of the operator on meta tensors."""

    meta_args, meta_kwargs = tree_map(_to_meta, (list(args), dict(kwargs)))
    return func(*meta_args, **meta_kwargs).dtype


def _to_meta(value: Any) -> Any:
    return torch.empty(value.shape, dtype=value.dtype, device="meta") if isinstance(value, torch.Tensor) else value


def promote_dtypes(values: Sequence[Any]) -> torch.dtype:
    """Return the dtype that torch computes in where the result's does not tell: comparisons."""
    first, *rest = [_to_meta(v) for v in values]
    return torch.result_type(first, rest[0]) if rest else torch.result_type(first, first)


def cast_to_symbol(dispatch: SymbolicDispatch, value: Any, dtype: torch.dtype) -> SymbolicTensor:
    """Return a tensor or a number as a symbolic tensor of ``dtype``."""
    if not isinstance(value, torch.Tensor):
        return dispatch.to_symbol(torch.tensor(value, dtype=dtype))
    return dispatch.cast(dispatch.to_symbol(value), dtype)


def add_scaled(graph: ExprGraph, dtype: str, x: int, factor: int) -> int:
    """Return the node of ``x * factor``; ``x`` itself where the factor is the constant 1."""
    return x if graph.constant_value(factor) == 1 else graph.add("mul", (x, factor), dtype)

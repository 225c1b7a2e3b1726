"""Dtypes as torch chooses them, and arguments in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_map

from exporter.backends.c_kernel.expression_graph import Terms
from exporter.backends.c_kernel.symbolic_tensor import Lowering, Symbol


def result_dtype(lowering: Lowering, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.dtype:
    """The dtype that torch gives the result: it is asked, on tensors without numbers."""

    given, named = tree_map(_meta, (list(args), dict(kwargs)))
    return func(*given, **named).dtype


def _meta(value: Any) -> Any:
    return torch.empty(value.shape, dtype=value.dtype, device="meta") if isinstance(value, torch.Tensor) else value


def common_dtype(values: Sequence[Any]) -> torch.dtype:
    """What torch computes in where the result says nothing of it: comparisons."""
    first, *rest = [_meta(v) for v in values]
    return torch.result_type(first, rest[0]) if rest else torch.result_type(first, first)


def as_terms(lowering: Lowering, value: Any, dtype: torch.dtype) -> Symbol:
    if not isinstance(value, torch.Tensor):
        return lowering.symbol(torch.tensor(value, dtype=dtype))
    return lowering.cast(lowering.symbol(value), dtype)


def scaled_by(terms: Terms, kind: str, x: int, factor: int) -> int:
    return x if terms.value(factor) == 1 else terms.make("mul", (x, factor), kind)

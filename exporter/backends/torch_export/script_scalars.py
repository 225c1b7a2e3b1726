"""TorchScript's operators on numbers and lists, as Python's: dynamic batch sizes stay symbolic."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch


def _append(values: list[Any], value: Any) -> list[Any]:
    values.append(value)
    return values


def _set_item(values: list[Any], index: int, value: Any) -> list[Any]:
    values[index] = value
    return values


def _call_list_method(values: list[Any], method_name: str, *args: Any) -> list[Any]:
    """Call Python's method of a list and return the list, as TorchScript's does."""
    getattr(values, method_name)(*args)
    return values


def _negate(value: Any) -> Any:
    return torch.sym_not(value) if isinstance(value, torch.SymBool) else not value


def _to_bool(value: Any) -> Any:
    if isinstance(value, (torch.SymBool, torch.Tensor)):
        return value
    return value != 0 if isinstance(value, torch.SymInt) else bool(value)


def _slice(values: list[Any], start: int | None, stop: int | None, step: int = 1) -> list[Any]:
    return values[start:stop:step]


def _to_int(value: Any) -> Any:
    return value if isinstance(value, torch.SymInt) else int(value)


def _compute_range_length(start: Any, stop: Any, step: int) -> Any:
    if step == 0:
        raise ValueError("range() arg 3 must not be zero")
    return max(0, (stop - start + step - (1 if step > 0 else -1)) // step)


def _take_min(*values: Any) -> Any:
    return torch.sym_min(*values) if len(values) == 2 else min(*values)


def _take_max(*values: Any) -> Any:
    return torch.sym_max(*values) if len(values) == 2 else max(*values)


def _pass_through(value: Any, *_: Any) -> Any:
    return value


# By operator without overload; for inputs without tensors.
SCALARS: Mapping[str, Callable[..., Any]] = {
    "aten::add": lambda a, b, alpha=1: a + b if isinstance(a, list) else a + b * alpha,
    "aten::sub": lambda a, b, alpha=1: a - b * alpha,
    "aten::rsub": lambda a, b, alpha=1: b - a * alpha,
    "aten::mul": operator.mul,
    "aten::div": operator.truediv,
    "aten::floordiv": operator.floordiv,
    "aten::floor_divide": operator.floordiv,
    "aten::remainder": operator.mod,
    "aten::neg": operator.neg,
    "aten::pow": operator.pow,
    "aten::abs": abs,
    "aten::eq": operator.eq,
    "aten::ne": operator.ne,
    "aten::lt": operator.lt,
    "aten::le": operator.le,
    "aten::gt": operator.gt,
    "aten::ge": operator.ge,
    "aten::__not__": _negate,
    "aten::__and__": operator.and_,
    "aten::__or__": operator.or_,
    "aten::__is__": operator.is_,
    "aten::__isnot__": operator.is_not,
    "aten::__contains__": lambda values, value: value in values,
    "aten::Int": _to_int,
    "aten::IntImplicit": _to_int,
    "aten::ScalarImplicit": _pass_through,
    "aten::Float": float,
    "aten::FloatImplicit": float,
    "aten::Bool": _to_bool,
    "aten::extend": lambda values, more: _call_list_method(values, "extend", more),
    "aten::insert": lambda values, index, value: _call_list_method(values, "insert", index, value),
    "aten::pop": lambda values, index=-1: values.pop(index),
    "aten::reverse": lambda values: _call_list_method(values, "reverse"),
    "aten::clear": lambda values: _call_list_method(values, "clear"),
    "aten::sqrt": math.sqrt,
    "aten::floor": math.floor,
    "aten::ceil": math.ceil,
    "aten::len": len,
    "aten::list": list,
    "aten::append": _append,
    "aten::_set_item": _set_item,
    "aten::slice": _slice,
    "aten::__range_length": _compute_range_length,
    "aten::__derive_index": lambda index, start, step: start + index * step,
    "aten::format": lambda text, *values: text.format(*values),
    "aten::detach": _pass_through,
    "aten::clone": lambda value, *_: value,
    "aten::to": _pass_through,
    "prim::min": _take_min,
    "prim::max": _take_max,
    "prim::NumToTensor": _pass_through,
    "prim::unchecked_cast": _pass_through,
}
# Operators of lists, which may hold tensors.
LISTS = frozenset(
    f"aten::{name}"
    for name in (
        *("__getitem__", "len", "append", "_set_item", "slice", "list", "add", "__is__", "__isnot__"),
        *("extend", "insert", "pop", "reverse", "clear"),
    )
)

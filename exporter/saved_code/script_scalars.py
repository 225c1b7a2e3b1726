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


def _format(text: str, *values: Any) -> str:
    """Put values where ``{}`` stands, and nothing else: Python's own reads attributes that a stranger's text names.

    Source: ``format`` of torch/csrc/jit/runtime/vararg_functions.cpp."""
    first, *rest = text.split("{}")
    if len(rest) > len(values):
        raise RuntimeError(f"Too few arguments for format string: {text}")
    return first + "".join(f"{value}{part}" for value, part in zip(values, rest, strict=False))


def _measure_length(value: Any) -> int:
    """Return the length; that of a text in bytes, as in C++."""
    return len(value.encode()) if isinstance(value, str) else len(value)


def _to_bool(value: Any) -> Any:
    if isinstance(value, (torch.SymBool, torch.Tensor)):
        return value
    return value != 0 if isinstance(value, torch.SymInt) else bool(value)


def _to_int(value: Any) -> Any:
    return value if isinstance(value, torch.SymInt) else int(value)


def _compute_range_length(start: Any, stop: Any, step: int) -> Any:
    if step == 0:
        raise ValueError("range() arg 3 must not be zero")
    return max(0, (stop - start + step - (1 if step > 0 else -1)) // step)


def _pass_through(value: Any, *_: Any) -> Any:
    return value


# By operator without overload; for inputs without tensors.
SCALARS: Mapping[str, Callable[..., Any]] = {f"aten::{name}": function for name, function in {
    "add": lambda a, b, alpha=1: a + b if isinstance(a, list) else a + b * alpha,
    "sub": lambda a, b, alpha=1: a - b * alpha,
    "rsub": lambda a, b, alpha=1: b - a * alpha,
    "mul": operator.mul, "div": operator.truediv, "floordiv": operator.floordiv, "floor_divide": operator.floordiv,
    "remainder": operator.mod, "neg": operator.neg, "pow": operator.pow, "abs": abs, "sqrt": math.sqrt,
    "floor": math.floor, "ceil": math.ceil,
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge,
    "__not__": lambda value: torch.sym_not(value) if isinstance(value, torch.SymBool) else not value,
    "__and__": operator.and_, "__or__": operator.or_,
    "__contains__": lambda values, value: value in values,
    "Int": _to_int, "IntImplicit": _to_int, "ScalarImplicit": _pass_through, "Float": float, "FloatImplicit": float,
    "Bool": _to_bool,
    "extend": lambda values, more: _call_list_method(values, "extend", more),
    "insert": lambda values, index, value: _call_list_method(values, "insert", index, value),
    "pop": lambda values, index=-1: values.pop(index),
    "reverse": lambda values: _call_list_method(values, "reverse"),
    "clear": lambda values: _call_list_method(values, "clear"),
    "len": _measure_length, "list": list, "append": _append, "_set_item": _set_item,
    "slice": lambda values, start, stop, step=1: values[start:stop:step],
    "__range_length": _compute_range_length, "__derive_index": lambda index, start, step: start + index * step,
    "add_": lambda values, more: _call_list_method(values, "extend", more),
    "mul_": lambda values, count: _call_list_method(values, "__imul__", count),
    "remove": lambda values, value: _call_list_method(values, "remove", value),
    "sort": lambda values, reverse=False: values.sort(reverse=reverse), "sorted": sorted,
    "copy": lambda values: values.copy(), "dict": dict, "Delete": operator.delitem,
    "update": lambda values, more: values.update(more), "setdefault": lambda values, *pair: values.setdefault(*pair),
    "str": str, "keys": list, "values": lambda values: list(values.values()),
    "items": lambda values: list(values.items()), "get": lambda values, key, *default: values.get(key, *default),
    "format": _format,
    "detach": _pass_through, "clone": lambda value, *_: value, "to": _pass_through,
}.items()} | {
    "prim::min": lambda *values: torch.sym_min(*values) if len(values) == 2 else min(*values),
    "prim::max": lambda *values: torch.sym_max(*values) if len(values) == 2 else max(*values),
    "prim::NumToTensor": _pass_through,
    "prim::unchecked_cast": _pass_through,
}  # fmt: skip
# Operators of lists, which may hold tensors.
LISTS = frozenset(f"aten::{name}" for name in (
    "__getitem__", "len", "append", "_set_item", "slice", "list", "add", "extend", "insert",
    "pop", "reverse", "clear", "remove", "sort", "sorted", "copy", "mul", "add_", "mul_",
))  # fmt: skip

"""Calls of torch's operators by the names that graphs have for them; dtypes and the like are numbers there."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from exporter.saved_code.ir import Node


def run_operator(node: Node, values: Sequence[Any], override: Callable[..., Any] | None = None) -> Sequence[Any]:
    """Run torch's operator of a node, or ``override`` in its place; dtypes and the like are numbers in a graph."""
    operator, argument_types, names = _find_operator(node.operator.partition("[")[0])
    converted = [_convert_argument(type_name, v) for type_name, v in zip(argument_types, values, strict=False)]
    if override is not None:
        result = override(*converted)
        return [result] if len(node.outputs) == 1 else result
    keywords = {name: v for name, v in zip(names, converted, strict=False) if name}
    result = operator(*(v for name, v in zip(names, converted, strict=False) if not name), **keywords)
    return [result] if len(node.outputs) == 1 else list(result) if node.outputs else []


@functools.cache
def _find_operator(qualified: str) -> tuple[Callable[..., Any], tuple[str, ...], tuple[str, ...]]:
    """Return torch's operator, the types of its arguments, and the names of those that have to be named."""
    space, _, name = qualified.partition("::")
    name, _, overload = name.partition(".")
    operator = getattr(getattr(getattr(torch.ops, space), name), overload or "default")
    arguments = operator._schema.arguments
    # It would write to a copy of its own.
    if any(a.alias_info and a.alias_info.is_write and str(a.type) != "Tensor" for a in arguments):
        raise NotImplementedError(f"no form outside TorchScript: {qualified}")
    types = tuple(str(a.real_type) for a in arguments)
    return operator, types, tuple(a.name if a.kwarg_only else "" for a in arguments)


STRUCTURE: Mapping[str, Callable[[Sequence[Any]], Sequence[Any]]] = {
    "prim::ListConstruct": lambda values: [list(values)],
    "prim::TupleConstruct": lambda values: [tuple(values)],
    "prim::DictConstruct": lambda values: [dict(zip(values[::2], values[1::2], strict=True))],
    "prim::TupleUnpack": lambda values: values[0],
    "prim::ListUnpack": lambda values: values[0],
    "prim::TupleIndex": lambda values: [values[0][values[1]]],
    "prim::TupleSlice": lambda values: [values[0][values[1] : values[2]]],
    "prim::device": lambda values: [values[0].device],
    "prim::shape": lambda values: [list(values[0].shape)],
    "prim::data": lambda values: [values[0].detach()],
    "prim::unchecked_unwrap_optional": lambda values: [values[0]],
    # Graphs hold dtypes as numbers, and compare them.
    "prim::dtype": lambda values: [_number_dtype(values[0].dtype)],
    "prim::layout": lambda values: [_number_layout(values[0].layout)],
    "prim::is_cpu": lambda values: [values[0].is_cpu],
    "prim::is_cuda": lambda values: [values[0].is_cuda],
    "prim::Uninitialized": lambda values: [None],
    "aten::warn": lambda values: [],
    "aten::__is__": lambda values: [values[0] is values[1]],
    "aten::__isnot__": lambda values: [values[0] is not values[1]],
    "aten::_unwrap_optional": lambda values: [_unwrap(values[0])],
    "aten::size": lambda values: [values[0].shape[values[1]] if len(values) > 1 else list(values[0].shape)],
    "aten::stride": lambda values: [values[0].stride(*values[1:])],
    "aten::dim": lambda values: [values[0].dim()],
    "aten::numel": lambda values: [values[0].numel()],
}
# By torch's numbers; what is missing are quantized dtypes.
_DTYPES = {
    0: torch.uint8, 1: torch.int8, 2: torch.int16, 3: torch.int32, 4: torch.int64, 5: torch.float16, 6: torch.float32,
    7: torch.float64, 8: torch.complex32, 9: torch.complex64, 10: torch.complex128, 11: torch.bool, 15: torch.bfloat16,
    23: torch.float8_e5m2, 24: torch.float8_e4m3fn, 25: torch.float8_e5m2fnuz, 26: torch.float8_e4m3fnuz,
    27: torch.uint16, 28: torch.uint32, 29: torch.uint64,
}  # fmt: skip
_NUMBERS = {dtype: number for number, dtype in _DTYPES.items()}
_MEMORY_FORMATS = (torch.contiguous_format, torch.preserve_format, torch.channels_last, torch.channels_last_3d)


def find_dtype(number: int) -> torch.dtype:
    """Return the dtype of torch's number. Raises ``NotImplementedError`` for one that has none here."""
    if number not in _DTYPES:
        raise NotImplementedError(f"the dtype of number {number}")
    return _DTYPES[number]


def _number_dtype(dtype: torch.dtype) -> int:
    if dtype not in _NUMBERS:
        raise NotImplementedError(f"the number of {dtype}")
    return _NUMBERS[dtype]


def _number_layout(layout: torch.layout) -> int:
    if layout != torch.strided:
        raise NotImplementedError(f"the number of {layout}")
    return 0


def _convert_argument(type_name: str, value: Any) -> Any:
    type_name = type_name.removeprefix("Optional[").removesuffix("]").removesuffix("?")
    if type_name == "ScalarType" and isinstance(value, int):
        return find_dtype(value)
    if type_name == "MemoryFormat" and isinstance(value, int):
        return _MEMORY_FORMATS[value]
    if type_name == "Tensor" and isinstance(value, (int, float, torch.SymInt)):
        number: Any = value
        return torch.scalar_tensor(number, dtype=torch.float64 if isinstance(value, float) else torch.int64)
    if type_name == "Layout" and value is not None:
        if value != 0:
            raise NotImplementedError(f"the layout of number {value}")
        return torch.strided
    return value


def _unwrap(value: Any) -> Any:
    if value is None:
        raise RuntimeError("unwrapping null optional")
    return value

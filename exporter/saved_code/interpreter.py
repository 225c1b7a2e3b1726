"""Interpreter of saved graphs in Python, node by node, with torch's own operators and without ``torch.jit``."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from exporter.saved_code.ir import (
    APART,
    CALL,
    Block,
    Input,
    Literal,
    Node,
    SavedGraphs,
    TensorConstant,
    get_callee,
    list_last_uses,
)
from exporter.saved_code.script_scalars import LISTS, SCALARS

# Runs the call of a submodule that is not inlined, from its path and its inputs.
SubmoduleCall = Callable[[str, Sequence[Any]], Any]
Env = dict[int, Any]
# A context that gives an origin to everything traced in it.
NodeContext = Callable[[Node], contextlib.AbstractContextManager[Any]]


def _enter_nothing(node: Node) -> contextlib.AbstractContextManager[Any]:
    return contextlib.nullcontext()


def _refuse_call(path: str, inputs: Sequence[Any]) -> Any:
    raise NotImplementedError(f"a call of the submodule {path}")


class Interpreter:
    """Interpreter of the methods of ``saved``, with ``tensors`` instead of those of the file, by
    ``TensorConstant.key``. Errors of the model are ``RuntimeError``, as TorchScript's own are."""

    # By operator without overload; for inputs without tensors.
    scalars: Mapping[str, Callable[..., Any]] = SCALARS

    def __init__(
        self,
        saved: SavedGraphs,
        tensors: Mapping[str, torch.Tensor],
        call_submodule: SubmoduleCall = _refuse_call,
        node_context: NodeContext = _enter_nothing,
    ) -> None:
        self._saved = saved
        self._tensors = tensors
        self._call_submodule = call_submodule
        self._node_context = node_context
        # By ``id`` of a block, which the saved graphs keep alive.
        self._last_uses: dict[int, Sequence[Sequence[int]]] = {}

    def run(self, method: str, inputs: Sequence[Any]) -> Any:
        """Run a method and return its result: of most, a tuple of tensors."""
        (result,) = self._run_block(self._saved.graphs[method].body, inputs, {})
        return result

    def _run_block(self, block: Block, inputs: Sequence[Any], env: Env) -> list[Any]:
        # Each value of a graph has a number of its own, those of inner blocks too.
        env.update(zip(block.inputs, inputs, strict=True))
        if id(block) not in self._last_uses:
            self._last_uses[id(block)] = list_last_uses(block)
        for node, unneeded in zip(block.nodes, self._last_uses[id(block)], strict=True):
            with self._node_context(node):
                outputs = self._run_node(node, env)
            env.update(zip(node.outputs, outputs, strict=True))
            # A large batch needs the memory.
            for value in unneeded:
                del env[value]
        return [self._get_value(v, env) for v in block.outputs]

    def _get_value(self, operand: Input, env: Env) -> Any:
        if isinstance(operand, Literal):
            # Copy a list: the node may write to it.
            return list(operand.value) if isinstance(operand.value, list) else operand.value
        return self._tensors[operand.key] if isinstance(operand, TensorConstant) else env[operand]

    def _run_node(self, node: Node, env: Env) -> Sequence[Any]:
        node_kind = node.kind
        if node_kind == "prim::If":
            return self._run_branch(node, env)
        if node_kind == "prim::Loop":
            return self._run_loop(node, env)
        values = [self._get_value(v, env) for v in node.inputs]
        if node_kind == CALL:
            return [self.run(get_callee(node), values)]
        if node_kind == APART:
            return [self._call_submodule(get_callee(node), values)]
        if node_kind in _STRUCTURE:
            return _STRUCTURE[node_kind](values)
        if node_kind == "prim::RaiseException":
            return self._raise_error(node, values)
        if node_kind in self.scalars:
            numbers = self._read_numbers(node, values)
            if (node_kind in LISTS and isinstance(values[0], (list, dict))) or not _has_tensors(numbers):
                return [self.scalars[node_kind](*numbers)][: len(node.outputs)]
        if node_kind == "aten::__getitem__" and isinstance(values[0], (list, tuple, str, dict)):
            return [values[0][values[1]]]
        return self._run_operator(node, values)

    def _read_numbers(self, node: Node, values: list[Any]) -> list[Any]:
        """Return the values of a node of numbers and lists."""
        return values

    def _raise_error(self, node: Node, values: Sequence[Any]) -> Sequence[Any]:
        raise RuntimeError(str(values[0]))

    def _run_branch(self, node: Node, env: Env) -> Sequence[Any]:
        return self._run_block(node.blocks[0 if self._get_value(node.inputs[0], env) else 1], [], env)

    def _run_loop(self, node: Node, env: Env) -> Sequence[Any]:
        max_count, condition, *carried = (self._get_value(v, env) for v in node.inputs)
        (body,) = node.blocks
        for index in range(max_count):
            if not condition:
                break
            condition, *carried = self._run_block(body, [index, *carried], env)
        return carried

    def _run_operator(self, node: Node, values: Sequence[Any]) -> Sequence[Any]:
        if node.kind in READS:
            return [READS[node.kind](values[0])]
        if not node.kind.startswith("aten::") and not node.schema:
            raise NotImplementedError(f"no form outside TorchScript: {node.operator}")
        return run_operator(node, values)


class EagerInterpreter(Interpreter):
    """Interpreter that evaluates: numbers are numbers, and tensors of them are tensors."""

    scalars: Mapping[str, Callable[..., Any]] = {
        name: function for name, function in SCALARS.items() if name != "prim::NumToTensor"
    }

    def _run_operator(self, node: Node, values: Sequence[Any]) -> Sequence[Any]:
        if node.kind == "prim::NumToTensor":
            return [torch.tensor(values[0], dtype=torch.float64 if isinstance(values[0], float) else None)]
        if node.operator in ("aten::tensor", "aten::as_tensor.list"):
            # torch's dispatcher does not take lists of any type.
            content, dtype, device, *requires_grad = values
            dtype = None if dtype is None else DTYPES[dtype]
            return [torch.tensor(content, dtype=dtype, device=device, requires_grad=any(requires_grad))]
        return super()._run_operator(node, values)


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


def _unwrap(value: Any) -> Any:
    if value is None:
        raise RuntimeError("unwrapping null optional")
    return value


def _has_tensors(values: Sequence[Any]) -> bool:
    return any(isinstance(v, torch.Tensor) or (isinstance(v, (list, tuple)) and _has_tensors(v)) for v in values)


_STRUCTURE: Mapping[str, Callable[[Sequence[Any]], Sequence[Any]]] = {
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
    "prim::dtype": lambda values: [DTYPES.index(values[0].dtype)],
    "prim::layout": lambda values: [0],
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
    "aten::Bool": lambda values: [SCALARS["aten::Bool"](*values)],
}
# What reads a number from a tensor.
READS: Mapping[str, Callable[[torch.Tensor], Any]] = {
    "aten::Int": int, "aten::IntImplicit": int, "aten::Float": float, "aten::FloatImplicit": float,
    "aten::item": lambda value: value.item(), "aten::ScalarImplicit": lambda value: value.item(),
}  # fmt: skip

# Indexed by torch's numbers; the gaps are quantized and complex half.
DTYPES = (
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.float32, torch.float64, None,
    torch.complex64, torch.complex128, torch.bool, None, None, None, torch.bfloat16,
)  # fmt: skip
_MEMORY_FORMATS = (torch.contiguous_format, torch.preserve_format, torch.channels_last, torch.channels_last_3d)


def _convert_argument(type_name: str, value: Any) -> Any:
    type_name = type_name.removeprefix("Optional[").removesuffix("]").removesuffix("?")
    if type_name == "ScalarType" and isinstance(value, int):
        return DTYPES[value]
    if type_name == "MemoryFormat" and isinstance(value, int):
        return _MEMORY_FORMATS[value]
    if type_name == "Tensor" and isinstance(value, (int, float, torch.SymInt)):
        number: Any = value
        return torch.scalar_tensor(number, dtype=torch.float64 if isinstance(value, float) else torch.int64)
    if type_name == "Layout" and value is not None:
        return torch.strided
    return value

"""Interpreter of saved graphs in Python, node by node, with torch's own operators and without ``torch.jit``."""

from __future__ import annotations

import contextlib
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
from exporter.saved_code.operator_calls import STRUCTURE, find_dtype, run_operator
from exporter.saved_code.script_scalars import LISTS, SCALARS

# Runs the call of a submodule that is not inlined, from its path and its inputs.
SubmoduleCall = Callable[[str, Sequence[Any]], Any]
Env = dict[int, Any]
# Operators of lists, dicts and texts that torch's dispatcher does not take.
_CONTAINERS = LISTS | {
    f"aten::{n}" for n in ("keys", "values", "items", "get", "update", "setdefault", "Delete", "dict")
}
_CONTAINERS |= {"aten::__contains__"}
# A context that gives an origin to everything traced in it.
NodeContext = Callable[[Node], contextlib.AbstractContextManager[Any]]


def enter_nothing(node: Node) -> contextlib.AbstractContextManager[Any]:
    """Return a context that does nothing."""
    return contextlib.nullcontext()


def _refuse_call(path: str, inputs: Sequence[Any]) -> Any:
    raise NotImplementedError(f"a call of the submodule {path}")


class Interpreter:
    """Interpreter of the methods of ``saved``, with ``tensors`` instead of those of the file, by
    ``TensorConstant.key``."""

    # What is done without torch, by operator.
    structure: Mapping[str, Callable[[Sequence[Any]], Sequence[Any]]] = STRUCTURE

    def __init__(
        self,
        saved: SavedGraphs,
        tensors: Mapping[str, torch.Tensor],
        call_submodule: SubmoduleCall = _refuse_call,
        node_context: NodeContext = enter_nothing,
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
            # The node may write to a list; one that is an attribute is the same at each read.
            return self._get_shared(operand.value) if operand.is_shared else _copy_lists(operand.value)
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
        if node_kind in self.structure:
            return self.structure[node_kind](values)
        if node_kind == "prim::RaiseException":
            return self._raise_error(node, values)
        if node_kind in SCALARS:
            numbers = self._read_numbers(node, values)
            if self._is_for_python(node_kind, numbers):
                return [SCALARS[node_kind](*numbers)][: len(node.outputs)]
        if node_kind == "aten::__getitem__" and isinstance(values[0], (list, tuple, str, dict)):
            return [values[0][values[1]]]
        return self._run_operator(node, values)

    def _get_shared(self, value: Any) -> Any:
        """Return a list that is an attribute of the module."""
        return value

    def _is_for_python(self, kind: str, values: Sequence[Any]) -> bool:
        """Return whether an operator of numbers and lists is Python's here, not torch's."""
        return (kind in LISTS and isinstance(values[0], (list, dict))) or not _has_tensors(values)

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
        if not node.kind.startswith("aten::") and not node.schema:
            raise NotImplementedError(f"no form outside TorchScript: {node.operator}")
        return run_operator(node, values)


class EagerInterpreter(Interpreter):
    """Interpreter that evaluates: numbers are computed by torch too, with its integers of 64 bits and its infinities.

    Errors of the model are ``RuntimeError``, as TorchScript's own are."""

    def run(self, method: str, inputs: Sequence[Any]) -> Any:
        """Run a method and return its result."""
        try:
            return super().run(method, inputs)
        except RuntimeError:
            raise
        except Exception as error:
            raise RuntimeError(f"{type(error).__name__}: {error}") from error

    def _is_for_python(self, kind: str, values: Sequence[Any]) -> bool:
        return kind == "aten::format" or (kind in _CONTAINERS and any(isinstance(v, (list, dict)) for v in values))

    def _run_operator(self, node: Node, values: Sequence[Any]) -> Sequence[Any]:
        if node.kind in ("aten::tensor", "aten::as_tensor") and isinstance(values[0], list):
            # torch's dispatcher does not take lists of any type; the type of an empty one stands in the node.
            content, dtype, device, *requires_grad = values
            element = {"int": torch.int64, "bool": torch.bool}.get(node.operator.partition("[")[2].removesuffix("]"))
            chosen = element if dtype is None else find_dtype(dtype)
            return [torch.tensor(content, dtype=chosen, device=device, requires_grad=any(requires_grad))]
        return super()._run_operator(node, values)


def _has_tensors(values: Sequence[Any]) -> bool:
    return any(isinstance(v, torch.Tensor) or (isinstance(v, (list, tuple)) and _has_tensors(v)) for v in values)


def _copy_lists(value: Any) -> Any:
    return [_copy_lists(v) for v in value] if isinstance(value, list) else value

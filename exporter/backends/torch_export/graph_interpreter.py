"""Runs a saved graph in Python, one node after the other, so that whatever traces Python sees torch's own operators.

Sizes stay symbolic where they are given so; submodules that are read apart are given to the caller. What follows the
data (a branch, a loop) has no place in a container that knows no control flow, and is refused by name.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from exporter.backends.torch_export.script_scalars import LISTS, SCALARS
from exporter.common.errors import UnsupportedError
from exporter.graph.ir import Block, Held, Input, Literal, Node
from exporter.graph.origin import Origin
from exporter.graph.reader import APART, CALL, Saved, called

# What stands for the call of a submodule that is read apart: its path, then what it is given.
Apart = Callable[[str, Sequence[Any]], Any]
Env = dict[int, Any]
# Puts an origin on what is traced while it lasts.
Within = Callable[[Node], contextlib.AbstractContextManager[Any]]


class Interpreter:
    """Runs the methods of ``saved`` with ``tensors`` in the place of those that the file holds, by ``Held.key``.

    ``instead`` has functions that take the place of torch's operators, by name without overload. ``notes`` says what
    was left out on the way.
    """

    def __init__(
        self,
        saved: Saved,
        tensors: Mapping[str, torch.Tensor],
        apart: Apart,
        within: Within = lambda node: contextlib.nullcontext(),
        instead: Mapping[str, Callable[..., Any]] = MappingProxyType({}),
    ) -> None:
        self._saved = saved
        self._tensors = tensors
        self._apart = apart
        self._within = within
        self._instead = instead
        self.notes: list[str] = []

    def run(self, method: str, inputs: Sequence[Any]) -> Any:
        """What the method returns: a tuple of tensors. Raises ``UnsupportedError`` for what follows the data."""
        (found,) = self._block(self._saved.graphs[method].body, inputs, {})
        return found

    def _block(self, block: Block, inputs: Sequence[Any], outside: Env) -> list[Any]:
        env = outside | dict(zip(block.inputs, inputs, strict=True))
        for node in block.nodes:
            with self._within(node):
                found = self._node(node, env)
            env.update(zip(node.outputs, found, strict=True))
        return [self._value(v, env) for v in block.outputs]

    def _value(self, given: Input, env: Env) -> Any:
        if isinstance(given, Literal):
            # A list is the node's own: it may be written to.
            return list(given.value) if isinstance(given.value, list) else given.value
        return self._tensors[given.key] if isinstance(given, Held) else env[given]

    def _number(self, given: Input, value: Any) -> Any:
        """A trace computes with sizes as with tensors, and has its whole numbers in tensors."""
        if not isinstance(given, Held) or given.name or given.shape or given.dtype != "int64":
            return value
        return int(self._saved.tensors[given.key])

    def _node(self, node: Node, env: Env) -> Sequence[Any]:
        kind = node.kind
        if kind == "prim::If":
            return self._branch(node, env)
        if kind == "prim::Loop":
            return self._loop(node, env)
        values = [self._value(v, env) for v in node.inputs]
        if kind == CALL:
            return [self.run(called(node), values)]
        if kind == APART:
            return [self._apart(called(node), values)]
        if kind in _SHAPES:
            return _SHAPES[kind](values)
        if kind == "prim::RaiseException":
            raise _refused("the graph raises an error wherever it is run", node, str(values[0]))
        if kind in SCALARS:
            numbers = [self._number(given, value) for given, value in zip(node.inputs, values, strict=True)]
            if (kind in LISTS and isinstance(values[0], list)) or not _tensors(numbers):
                return [SCALARS[kind](*numbers)]
        if kind == "aten::__getitem__" and isinstance(values[0], (list, tuple)):
            return [values[0][values[1]]]
        if kind in self._instead and kind in _RAISING:
            self.notes.append(
                f"a singular matrix gives numbers that are not finite, and no error {text_of(node.origin)}".strip()
            )
        if kind in _OF_DATA:
            raise _refused("a number is read from a tensor while the model runs", node, node.operator)
        if not kind.startswith("aten::"):
            raise _refused("an operator has no form outside TorchScript", node, node.operator)
        return _operated(node, values, self._instead.get(kind))

    def _branch(self, node: Node, env: Env) -> Sequence[Any]:
        condition = _decided(self._value(node.inputs[0], env), node)
        if not isinstance(condition, torch.Tensor):
            return self._block(node.blocks[0 if condition else 1], [], env)
        raising = [any(n.kind == "prim::RaiseException" for n in b.nodes) for b in node.blocks]
        if sum(raising) != 1:
            raise _refused("a branch depends on the data", node, "an if on a tensor's value")
        # What is traced here has no errors of its own.
        self.notes.append(f"an error that depends on the data is not raised {text_of(node.origin)}".strip())
        return self._block(node.blocks[raising.index(False)], [], env)

    def _loop(self, node: Node, env: Env) -> Sequence[Any]:
        most, condition, *carried = (self._value(v, env) for v in node.inputs)
        (body,) = node.blocks
        if isinstance(most, torch.SymInt):
            raise _refused("a loop goes over the batch", node, "one pass for each element")
        for at in range(most):
            condition = _decided(condition, node)
            if isinstance(condition, torch.Tensor):
                raise _refused("a loop depends on the data", node, "a while on a tensor's value")
            if not condition:
                break
            condition, *carried = self._block(body, [at, *carried], env)
        return carried


def _decided(condition: Any, node: Node) -> Any:
    """A condition on sizes that are open must hold for all of them: what is traced here would keep one answer."""
    if not isinstance(condition, torch.SymBool):
        return condition
    if statically_known_true(condition):
        return True
    if statically_known_true(torch.sym_not(condition)):
        return False
    raise _refused("a branch depends on the size of the batch", node, str(condition))


def _tensors(values: Sequence[Any]) -> bool:
    return any(isinstance(v, torch.Tensor) or (isinstance(v, (list, tuple)) and _tensors(v)) for v in values)


def _index(values: Sequence[Any]) -> list[Any]:
    return [values[0][values[1]]]


_SHAPES: Mapping[str, Callable[[Sequence[Any]], Sequence[Any]]] = {
    "prim::ListConstruct": lambda values: [list(values)],
    "prim::TupleConstruct": lambda values: [tuple(values)],
    "prim::TupleUnpack": lambda values: values[0],
    "prim::ListUnpack": lambda values: values[0],
    "prim::TupleIndex": _index,
    "prim::device": lambda values: [values[0].device],
    # Graphs have dtypes as numbers, and compare them.
    "prim::dtype": lambda values: [_DTYPES.index(values[0].dtype)],
    "prim::layout": lambda values: [0],
    "prim::is_cuda": lambda values: [values[0].is_cuda],
    "prim::Uninitialized": lambda values: [None],
    "aten::warn": lambda values: [],
    "aten::size": lambda values: [values[0].shape[values[1]] if len(values) > 1 else list(values[0].shape)],
    "aten::stride": lambda values: [values[0].stride(*values[1:])],
    "aten::dim": lambda values: [values[0].dim()],
    "aten::numel": lambda values: [values[0].numel()],
    "aten::Bool": lambda values: [SCALARS["aten::Bool"](*values)],
}
_RAISING = {f"aten::{name}" for name in ("linalg_solve", "linalg_inv", "inverse", "linalg_lu_factor")}
_OF_DATA = {f"aten::{name}" for name in ("Int", "Float", "item", "IntImplicit", "FloatImplicit", "ScalarImplicit")}


def _operated(node: Node, values: Sequence[Any], instead: Callable[..., Any] | None) -> Sequence[Any]:
    """torch's operator. Dtypes and their kin are numbers in a graph."""
    space, _, whole = node.operator.partition("[")[0].partition("::")
    name, _, overload = whole.partition(".")
    operator = getattr(getattr(getattr(torch.ops, space), name), overload or "default")
    arguments = operator._schema.arguments
    given = [_typed(str(a.real_type), v) for a, v in zip(arguments, values, strict=False)]
    if instead is not None:
        found = instead(*given)
        return [found] if len(node.outputs) == 1 else found
    free = {a.name: v for a, v in zip(arguments, given, strict=False) if a.kwarg_only}
    found = operator(*(v for a, v in zip(arguments, given, strict=False) if not a.kwarg_only), **free)
    return [found] if len(node.outputs) == 1 else list(found) if node.outputs else []


# By torch's numbers of them; the gaps are quantized and complex half.
_DTYPES = (
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.float32,
    torch.float64,
    None,
    torch.complex64,
    torch.complex128,
    torch.bool,
    None,
    None,
    None,
    torch.bfloat16,
)
_FORMATS = (torch.contiguous_format, torch.preserve_format, torch.channels_last, torch.channels_last_3d)


def _typed(kind: str, value: Any) -> Any:
    kind = kind.removeprefix("Optional[").removesuffix("]").removesuffix("?")
    if kind == "ScalarType" and isinstance(value, int):
        return _DTYPES[value]
    if kind == "MemoryFormat" and isinstance(value, int):
        return _FORMATS[value]
    if kind == "Tensor" and isinstance(value, (int, float, torch.SymInt)):
        number: Any = value
        return torch.scalar_tensor(number, dtype=torch.float64 if isinstance(value, float) else torch.int64)
    if kind == "Layout" and value is not None:
        return torch.strided
    return value


def text_of(origin: Origin) -> str:
    """``in MODEL, FILE:LINE``, as far as it is known."""
    parts = [f"in {origin.module}" if origin.module else "", f"at {origin.where}" if origin.where else ""]
    return ", ".join(filter(None, parts))


def _refused(what: str, node: Node, got: str) -> UnsupportedError:
    return UnsupportedError(
        f"{what}, which this container cannot hold",
        check="operators",
        where=text_of(node.origin),
        got=got,
        expected="operators of fixed order, on tensors",
        mend="use the .pt, or write it without control flow on data: torch.where keeps both sides",
    )

"""Interpreter of saved graphs in Python, node by node, so that whatever traces Python sees torch's own operators.

Symbolic sizes stay symbolic; calls of submodules that are not inlined are passed to the caller. Control flow that
depends on data (a branch, a loop) does not exist in formats without control flow, and is rejected by name."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

from exporter.backends.torch_export.script_scalars import LISTS, SCALARS
from exporter.common.errors import UnsupportedError
from exporter.graph.ir import Block, Input, Literal, Node, TensorConstant
from exporter.graph.origin import Origin
from exporter.graph.reader import APART, CALL, SavedGraphs, get_callee

# Runs the call of a submodule that is not inlined, from its path and its inputs.
SubmoduleCall = Callable[[str, Sequence[Any]], Any]
Env = dict[int, Any]
# A context that gives an origin to everything traced in it.
NodeContext = Callable[[Node], contextlib.AbstractContextManager[Any]]


class Interpreter:
    """Interpreter of the methods of ``saved``, with ``tensors`` instead of those of the file, by
    ``TensorConstant.key``.

    ``overrides`` are functions that replace torch's operators, by name without overload. ``notes`` say what was left
    out on the way."""

    def __init__(
        self,
        saved: SavedGraphs,
        tensors: Mapping[str, torch.Tensor],
        call_submodule: SubmoduleCall,
        node_context: NodeContext = lambda node: contextlib.nullcontext(),
        overrides: Mapping[str, Callable[..., Any]] = MappingProxyType({}),
    ) -> None:
        self._saved = saved
        self._tensors = tensors
        self._call_submodule = call_submodule
        self._node_context = node_context
        self._overrides = overrides
        self.notes: list[str] = []

    def run(self, method: str, inputs: Sequence[Any]) -> Any:
        """Run a method and return its tuple of tensors; raise ``UnsupportedError`` for control flow on data."""
        (result,) = self._run_block(self._saved.graphs[method].body, inputs, {})
        return result

    def _run_block(self, block: Block, inputs: Sequence[Any], outside: Env) -> list[Any]:
        env = outside | dict(zip(block.inputs, inputs, strict=True))
        for node in block.nodes:
            with self._node_context(node):
                outputs = self._run_node(node, env)
            env.update(zip(node.outputs, outputs, strict=True))
        return [self._get_value(v, env) for v in block.outputs]

    def _get_value(self, operand: Input, env: Env) -> Any:
        if isinstance(operand, Literal):
            # Copy a list: the node may write to it.
            return list(operand.value) if isinstance(operand.value, list) else operand.value
        return self._tensors[operand.key] if isinstance(operand, TensorConstant) else env[operand]

    def _unwrap_number(self, operand: Input, value: Any) -> Any:
        """Return a traced integer as a number: a trace holds integers, and computes with sizes, as tensors."""
        if not isinstance(operand, TensorConstant) or operand.name or operand.shape or operand.dtype != "int64":
            return value
        return int(self._saved.tensors[operand.key])

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
            raise _make_unsupported_error("the graph raises an error wherever it is run", node, str(values[0]))
        if node_kind in SCALARS:
            numbers = [self._unwrap_number(operand, value) for operand, value in zip(node.inputs, values, strict=True)]
            if (node_kind in LISTS and isinstance(values[0], list)) or not _has_tensors(numbers):
                return [SCALARS[node_kind](*numbers)]
        if node_kind == "aten::__getitem__" and isinstance(values[0], (list, tuple)):
            return [values[0][values[1]]]
        if node_kind in self._overrides and node_kind in _RAISING:
            note = f"{_RAISING[node_kind]}, and no error {format_origin(node.origin)}"
            self.notes.append(note.strip())
        if node_kind in _DATA_READS:
            raise _make_unsupported_error("a number is read from a tensor while the model runs", node, node.operator)
        if not node_kind.startswith("aten::"):
            raise _make_unsupported_error("an operator has no form outside TorchScript", node, node.operator)
        return _run_operator(node, values, self._find_override(node_kind))

    def _find_override(self, node_kind: str) -> Callable[..., Any] | None:
        """Return what replaces an operator; one that writes in place takes the numbers of its sibling that does not."""
        sibling = None if node_kind in _OF_SHAPES else self._overrides.get(node_kind.removesuffix("_"))
        if node_kind in self._overrides or sibling is None:
            return self._overrides.get(node_kind, _SIMPLER.get(node_kind))
        return lambda target, *rest: target.copy_(sibling(target, *rest))

    def _run_branch(self, node: Node, env: Env) -> Sequence[Any]:
        condition = _resolve_condition(self._get_value(node.inputs[0], env), node)
        if not isinstance(condition, torch.Tensor):
            return self._run_block(node.blocks[0 if condition else 1], [], env)
        raising = [any(n.kind == "prim::RaiseException" for n in b.nodes) for b in node.blocks]
        if sum(raising) != 1:
            raise _make_unsupported_error("a branch depends on the data", node, "an if on a tensor's value")
        # A trace raises no errors of its own.
        self.notes.append(f"an error that depends on the data is not raised {format_origin(node.origin)}".strip())
        return self._run_block(node.blocks[raising.index(False)], [], env)

    def _run_loop(self, node: Node, env: Env) -> Sequence[Any]:
        max_count, condition, *carried = (self._get_value(v, env) for v in node.inputs)
        (body,) = node.blocks
        if isinstance(max_count, torch.SymInt):
            raise _make_unsupported_error("a loop runs over the batch", node, "one pass for each element")
        for index in range(max_count):
            condition = _resolve_condition(condition, node)
            if isinstance(condition, torch.Tensor):
                raise _make_unsupported_error("a loop depends on the data", node, "a while on a tensor's value")
            if not condition:
                break
            condition, *carried = self._run_block(body, [index, *carried], env)
        return carried


def _resolve_condition(condition: Any, node: Node) -> Any:
    """Resolve a condition on dynamic sizes, which must hold for all of them: a trace would keep one answer."""
    if not isinstance(condition, torch.SymBool):
        return condition
    # It takes a third of a second to import, and is there where sizes are symbolic.
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    if statically_known_true(condition):
        return True
    if statically_known_true(torch.sym_not(condition)):
        return False
    raise _make_unsupported_error("a branch depends on the size of the batch", node, str(condition))


def _has_tensors(values: Sequence[Any]) -> bool:
    return any(isinstance(v, torch.Tensor) or (isinstance(v, (list, tuple)) and _has_tensors(v)) for v in values)


_STRUCTURE: Mapping[str, Callable[[Sequence[Any]], Sequence[Any]]] = {
    "prim::ListConstruct": lambda values: [list(values)],
    "prim::TupleConstruct": lambda values: [tuple(values)],
    "prim::TupleUnpack": lambda values: values[0],
    "prim::ListUnpack": lambda values: values[0],
    "prim::TupleIndex": lambda values: [values[0][values[1]]],
    "prim::device": lambda values: [values[0].device],
    # Graphs hold dtypes as numbers, and compare them.
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
# What they change in place is the shape, not the numbers.
_OF_SHAPES = frozenset({"aten::squeeze_"})


def _combine(x: torch.Tensor, count: int = 2, with_replacement: bool = False) -> torch.Tensor:
    """Return ``torch.combinations`` of a known number, which torch itself selects by a mask."""
    if not isinstance(x.shape[0], int) or not count:
        return torch.ops.aten.combinations.default(x, count, with_replacement)
    choose = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    places = torch.tensor(list(choose(range(x.shape[0]), count)), dtype=torch.int64).reshape(-1, count)
    return x[places]


# What other exporters know by a simpler name: without the choice of the library that computes it, or a size that
# depends on data.
_SIMPLER: Mapping[str, Callable[..., Any]] = {
    "aten::_convolution": lambda *values: torch.ops.aten.convolution.default(*values[:9]),
    "aten::combinations": _combine,
}
# What other formats give where torch raises an error.
_RAISING: Mapping[str, str] = {
    f"aten::{name}": text
    for text, names in {
        "a singular matrix gives infinities or NaN": ("linalg_solve", "linalg_inv", "inverse", "linalg_lu_factor"),
        "a matrix that is not positive definite gives NaN": ("linalg_cholesky", "cholesky"),
        "a class below 0 counts from the last one": ("cross_entropy_loss", "nll_loss", "nll_loss_nd", "nll_loss2d"),
    }.items()
    for name in names
}
_DATA_READS = {f"aten::{name}" for name in ("Int", "Float", "item", "IntImplicit", "FloatImplicit", "ScalarImplicit")}


def _run_operator(node: Node, values: Sequence[Any], override: Callable[..., Any] | None) -> Sequence[Any]:
    """Run torch's operator; dtypes and the like are numbers in a graph."""
    space, _, qualified_name = node.operator.partition("[")[0].partition("::")
    name, _, overload = qualified_name.partition(".")
    operator = getattr(getattr(getattr(torch.ops, space), name), overload or "default")
    arguments = operator._schema.arguments
    converted = [_convert_argument(str(a.real_type), v) for a, v in zip(arguments, values, strict=False)]
    if override is not None:
        result = override(*converted)
        return [result] if len(node.outputs) == 1 else result
    keywords = {a.name: v for a, v in zip(arguments, converted, strict=False) if a.kwarg_only}
    result = operator(*(v for a, v in zip(arguments, converted, strict=False) if not a.kwarg_only), **keywords)
    return [result] if len(node.outputs) == 1 else list(result) if node.outputs else []


# Indexed by torch's numbers; the gaps are quantized and complex half.
_DTYPES = (
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.float32, torch.float64, None,
    torch.complex64, torch.complex128, torch.bool, None, None, None, torch.bfloat16,
)  # fmt: skip
_MEMORY_FORMATS = (torch.contiguous_format, torch.preserve_format, torch.channels_last, torch.channels_last_3d)


def _convert_argument(type_name: str, value: Any) -> Any:
    type_name = type_name.removeprefix("Optional[").removesuffix("]").removesuffix("?")
    if type_name == "ScalarType" and isinstance(value, int):
        return _DTYPES[value]
    if type_name == "MemoryFormat" and isinstance(value, int):
        return _MEMORY_FORMATS[value]
    if type_name == "Tensor" and isinstance(value, (int, float, torch.SymInt)):
        number: Any = value
        return torch.scalar_tensor(number, dtype=torch.float64 if isinstance(value, float) else torch.int64)
    if type_name == "Layout" and value is not None:
        return torch.strided
    return value


def format_origin(origin: Origin) -> str:
    """Return ``in MODEL, FILE:LINE``, as far as it is known."""
    parts = [f"in {origin.module}" if origin.module else "", f"at {origin.where}" if origin.where else ""]
    return ", ".join(filter(None, parts))


def _make_unsupported_error(what: str, node: Node, got: str) -> UnsupportedError:
    what, expected = f"{what}, which this container cannot hold", "operators of fixed order, on tensors"
    mend = "use the .pt, or write it without control flow on data: torch.where keeps both sides"
    where = format_origin(node.origin)
    return UnsupportedError(what, check="operators", where=where, got=got, expected=expected, mend=mend)

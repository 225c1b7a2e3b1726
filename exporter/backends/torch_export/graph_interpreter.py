"""Interpreter of saved graphs under whatever traces Python: it sees torch's own operators.

Symbolic sizes stay symbolic; calls of submodules that are not inlined are passed to the caller. Control flow that
depends on data (a branch, a loop) does not exist in formats without control flow, and is rejected by name."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

from exporter.common.errors import UnsupportedError
from exporter.saved_code.interpreter import Env, Interpreter, NodeContext, SubmoduleCall, enter_nothing
from exporter.saved_code.ir import Input, Node, SavedGraphs, TensorConstant
from exporter.saved_code.operator_calls import STRUCTURE, run_operator
from exporter.saved_code.origin import Origin
from exporter.saved_code.script_scalars import SCALARS


class TracedInterpreter(Interpreter):
    """Interpreter whose run is traced. It raises ``UnsupportedError`` for control flow on data.

    ``overrides`` are functions that replace torch's operators, by name without overload. ``notes`` say what was left
    out on the way."""

    # A condition on data stays a tensor, which a branch names.
    structure: Mapping[str, Callable[[Sequence[Any]], Sequence[Any]]] = {
        **STRUCTURE,
        "aten::Bool": lambda values: [SCALARS["aten::Bool"](*values)],
    }

    def __init__(
        self,
        saved: SavedGraphs,
        tensors: Mapping[str, torch.Tensor],
        call_submodule: SubmoduleCall,
        node_context: NodeContext = enter_nothing,
        overrides: Mapping[str, Callable[..., Any]] = MappingProxyType({}),
    ) -> None:
        super().__init__(saved, tensors, call_submodule, node_context)
        self._overrides = overrides
        self.notes: list[str] = []

    def _get_shared(self, value: Any) -> Any:
        # Each run of a trace has to find it as it was: what writes to it fails.
        return tuple(value) if isinstance(value, list) else value

    def _read_numbers(self, node: Node, values: list[Any]) -> list[Any]:
        return [self._unwrap_number(operand, value) for operand, value in zip(node.inputs, values, strict=True)]

    def _unwrap_number(self, operand: Input, value: Any) -> Any:
        """Return a traced integer as a number: a trace holds integers, and computes with sizes, as tensors."""
        if not isinstance(operand, TensorConstant) or operand.name or operand.shape or operand.dtype != "int64":
            return value
        return int(self._saved.tensors[operand.key])

    def _raise_error(self, node: Node, values: Sequence[Any]) -> Sequence[Any]:
        raise _make_unsupported_error("the graph raises an error wherever it is run", node, str(values[0]))

    def _run_operator(self, node: Node, values: Sequence[Any]) -> Sequence[Any]:
        node_kind = node.kind
        if node_kind in self._overrides and node_kind in _RAISING:
            note = f"{_RAISING[node_kind]}, and no error {format_origin(node.origin)}"
            self.notes.append(note.strip())
        if node_kind in _DATA_READS:
            raise _make_unsupported_error("a number is read from a tensor while the model runs", node, node.operator)
        if not node_kind.startswith("aten::"):
            raise _make_unsupported_error("an operator has no form outside TorchScript", node, node.operator)
        return run_operator(node, values, self._find_override(node_kind))

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


_DATA_READS = {f"aten::{name}" for name in ("Int", "Float", "item", "IntImplicit", "FloatImplicit", "ScalarImplicit")}
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


def format_origin(origin: Origin) -> str:
    """Return ``in MODEL, FILE:LINE``, as far as it is known."""
    parts = [f"in {origin.module}" if origin.module else "", f"at {origin.where}" if origin.where else ""]
    return ", ".join(filter(None, parts))


def _make_unsupported_error(what: str, node: Node, got: str) -> UnsupportedError:
    what, expected = f"{what}, which this container cannot hold", "operators of fixed order, on tensors"
    mend = "use the .pt, or write it without control flow on data: torch.where keeps both sides"
    where = format_origin(node.origin)
    return UnsupportedError(what, check="operators", where=where, got=got, expected=expected, mend=mend)

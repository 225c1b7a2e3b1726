"""Origins of the operations of a captured backward pass: which part, submodule, line and hook they come from.

An operation that runs inside torch's engine belongs to a node of autograd, and the node to the operation of the forward
pass that created it: both have one sequence number (``Node._sequence_nr``, torch/csrc/autograd/function.h). User code
that the engine calls is a hook."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from exporter.common.torch_hooks import DispatchHook
from exporter.common.torch_internals import ENGINE_ENTRY, get_autograd_node, get_sequence_number
from exporter.common.user_code import INTERNAL_PATH_PREFIXES
from exporter.saved_code.origin import AFTER, BACKWARD, FORWARD, HOOK, Origin

_META = "torchferry_origin"
# Tensor types of a source library: their operations belong to the model that calls them.
_TENSOR_TYPES = "/neml2/types/"


def get_origin(node: torch.fx.Node) -> Origin | None:
    """Return the origin of a node; None if it has none."""
    return node.meta.get(_META)


def get_user_line(node: torch.fx.Node) -> str:
    """Return the user's ``file:line`` behind a node; empty if unknown."""
    origin = get_origin(node)
    return origin.where if origin is not None else ""


def relabel_forward_parts(graph: torch.fx.GraphModule) -> None:
    """Mark what lies between two backward passes as the forward pass of the second."""
    is_before_backward = False
    for node in reversed(graph.graph.nodes):
        origin = get_origin(node)
        is_before_backward |= origin is not None and origin.part in (BACKWARD, HOOK)
        if is_before_backward and origin is not None and origin.part == AFTER:
            node.meta[_META] = dataclasses.replace(origin, part=FORWARD)


class OriginTracker(DispatchHook):
    """A mode that stores origins on the nodes that another mode, entered before, adds to a graph for each operator.

    ``model`` is the module whose submodules are named; ``get_graph`` returns the graph, None while there is none."""

    def __init__(self, model: nn.Module, get_graph: Callable[[], torch.fx.Graph | None]) -> None:
        super().__init__()
        self._get_graph = get_graph
        self._paths = {module: path for path, module in model.named_modules() if path}
        self._module_stack: list[str] = []
        self._forward_origins: dict[int, Origin] = {}
        self._has_run_backward = False
        self._handles: list[Any] = []

    def __enter__(self) -> OriginTracker:
        def enter(module: nn.Module, _: Any) -> None:
            self._module_stack.append(self._paths.get(module, ""))

        def leave(module: nn.Module, _: Any, __: Any) -> None:
            self._module_stack.pop()

        self._handles = [register_module_forward_pre_hook(enter), register_module_forward_hook(leave, always_call=True)]
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        for handle in self._handles:
            handle.remove()
        super().__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        graph = self._get_graph()
        last = graph._root.prev if graph is not None else None
        result = func(*args, **(kwargs or {}))
        if graph is not None and graph._root.prev is not last:
            origin = self._determine_origin()
            node = graph._root.prev
            while node is not last:
                node.meta[_META] = origin
                node = node.prev
        return result

    def _determine_origin(self) -> Origin:
        user_line, function, engine = _inspect_stack()
        module = next((path for path in reversed(self._module_stack) if path), "")
        if engine is None:
            return Origin(BACKWARD, "seed", module, user_line)
        if not engine:
            origin = Origin(AFTER if self._has_run_backward else FORWARD, "", module, user_line)
            # Keep the first operation of an autograd node; an operation without a node has the number of the next.
            self._forward_origins.setdefault(get_sequence_number() - 1, origin)
            return origin
        self._has_run_backward = True
        node: Any = get_autograd_node()
        first = self._forward_origins.get(node._sequence_nr()) if node is not None else None
        forward_origin = first or Origin(FORWARD)
        # If the backward pass is recorded too, it has its own nodes.
        self._forward_origins.setdefault(get_sequence_number() - 1, forward_origin)
        if user_line and function == "backward":
            # A custom autograd function.
            return Origin(BACKWARD, node.name() if node is not None else "", forward_origin.module, user_line)
        if user_line:
            return Origin(HOOK, function, forward_origin.module, user_line)
        name = node.name().rpartition("::")[2] if node is not None else ""
        return Origin(BACKWARD, name, forward_origin.module, forward_origin.where)


def _inspect_stack() -> tuple[str, str, bool | None]:
    """Return the innermost user line on this side of the engine, its function, and whether the engine runs.

    The last is None while torch creates the initial gradients."""
    frame, where, function, seeds = sys._getframe(3), "", "", False
    while frame is not None:
        code = frame.f_code
        if code.co_name == ENGINE_ENTRY:
            return where, function, True
        seeds |= not where and code.co_filename == torch.autograd.__file__ and code.co_name in ("backward", "grad")
        if (not where or _TENSOR_TYPES in where) and not code.co_filename.startswith(INTERNAL_PATH_PREFIXES):
            where, function = f"{code.co_filename}:{frame.f_lineno}", function or code.co_name
        frame = frame.f_back
    return where, function, None if seeds else False

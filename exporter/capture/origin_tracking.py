"""Where the operations of a captured backward pass come from: which part, which submodule and line, which hook.

An operation that runs inside torch's engine belongs to a node of autograd, and the node to the operation of the forward
pass that made it: both have one sequence number (``Node._sequence_nr``, torch/csrc/autograd/function.h). Code of the
user's that the engine calls is a hook.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch._C._autograd import _get_sequence_nr
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

from exporter.common.autograd_engine import ENTRY
from exporter.common.user_code import NOT_THE_USERS
from exporter.graph.origin import AFTER, BACKWARD, FORWARD, HOOK, Origin

_META = "torchferry_origin"
# Of a source library: an operation is the model's that calls them.
_TENSOR_TYPES = "/neml2/types/"


def of_node(node: torch.fx.Node) -> Origin | None:
    return node.meta.get(_META)


def line_of(node: torch.fx.Node) -> str:
    """``file:line`` of the user's; empty where none is known."""
    origin = of_node(node)
    return origin.where if origin is not None else ""


def settle(graph: torch.fx.GraphModule) -> None:
    """What lies between two backward passes is the forward pass of the second."""
    later = False
    for node in reversed(graph.graph.nodes):
        origin = of_node(node)
        later |= origin is not None and origin.part in (BACKWARD, HOOK)
        if later and origin is not None and origin.part == AFTER:
            node.meta[_META] = dataclasses.replace(origin, part=FORWARD)


class Origins(TorchDispatchMode):
    """Inside ``make_fx``: notes the origin of every operation on its node. ``named``: the module whose submodules are
    named."""

    def __init__(self, named: nn.Module) -> None:
        super().__init__()
        self._paths = {module: path for path, module in named.named_modules() if path}
        self._inside: list[str] = []
        self._made: dict[int, Origin] = {}
        self._backward = False
        self._handles: list[Any] = []

    def __enter__(self) -> Origins:
        def enter(module: nn.Module, _: Any) -> None:
            self._inside.append(self._paths.get(module, ""))

        def leave(module: nn.Module, _: Any, __: Any) -> None:
            self._inside.pop()

        self._handles = [register_module_forward_pre_hook(enter), register_module_forward_hook(leave, always_call=True)]
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        for handle in self._handles:
            handle.remove()
        super().__exit__(*error)

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        mode = get_proxy_mode()
        graph = mode.tracer.graph if mode is not None else None
        last = graph._root.prev if graph is not None else None
        result = func(*args, **(kwargs or {}))
        if graph is not None and graph._root.prev is not last:
            origin = self._origin()
            node = graph._root.prev
            while node is not last:
                node.meta[_META] = origin
                node = node.prev
        return result

    def _origin(self) -> Origin:
        asked, function, engine = _stack()
        module = next((path for path in reversed(self._inside) if path), "")
        if engine is None:
            return Origin(BACKWARD, "seed", module, asked)
        if not engine:
            origin = Origin(AFTER if self._backward else FORWARD, "", module, asked)
            # The first operation that an autograd node stands for; what has no node has the number of the next.
            self._made.setdefault(_get_sequence_nr() - 1, origin)
            return origin
        self._backward = True
        node: Any = torch._C._current_autograd_node()  # pyright: ignore[reportAttributeAccessIssue]
        made = self._made.get(node._sequence_nr(), Origin(FORWARD)) if node is not None else Origin(FORWARD)
        # A graph of the backward pass itself has nodes of its own.
        self._made.setdefault(_get_sequence_nr() - 1, made)
        if asked and function == "backward":
            # Of a custom autograd function.
            return Origin(BACKWARD, node.name() if node is not None else "", made.module, asked)
        if asked:
            return Origin(HOOK, function, made.module, asked)
        return Origin(BACKWARD, node.name().rpartition("::")[2] if node is not None else "", made.module, made.where)


def _stack() -> tuple[str, str, bool | None]:
    """The innermost line of the user's on this side of the engine, its function, and whether the engine runs; None
    while torch makes the gradients that it starts from."""
    frame, where, function, seeds = sys._getframe(3), "", "", False
    while frame is not None:
        code = frame.f_code
        if code.co_name == ENTRY:
            return where, function, True
        seeds |= not where and code.co_filename == torch.autograd.__file__ and code.co_name in ("backward", "grad")
        if (not where or _TENSOR_TYPES in where) and not code.co_filename.startswith(NOT_THE_USERS):
            where, function = f"{code.co_filename}:{frame.f_lineno}", function or code.co_name
        frame = frame.f_back
    return where, function, None if seeds else False

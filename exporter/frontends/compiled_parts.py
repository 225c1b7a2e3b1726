"""Modules that are TorchScript already, a file or parts of a model in Python: checked, and wrapped to be captured."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from exporter.common.errors import CaptureError, SourceError, UnsoundError, summarize_error
from exporter.common.script_loading import iterate_nodes
from exporter.graph.torch_nodes import iterate_graphs
from exporter.model.compiled_model import CompiledModel, find_unusable_name, wrap_compiled
from exporter.model.function_model import FunctionModule
from exporter.saved_code.origin import find_origin

# Operators that change a list or a dict in place.
_CONTAINER_WRITES = [
    "aten::append",
    "aten::extend",
    "aten::insert",
    "aten::pop",
    "aten::clear",
    "aten::remove",
    "aten::_set_item",
]


def replace_compiled_parts(model: nn.Module, where: str) -> nn.Module:
    """Return a copy of a model in Python whose compiled parts can be captured; the model itself if it has none.

    Libraries compile layers of their own where they make them, as e3nn does.

    Args:
        model: Any module; one that is compiled as a whole stays as it is.
        where: The place of the model in messages.

    Returns:
        The model, or a copy in which a ``CompiledModel`` stands for each ``ScriptModule``. The model itself is then in
        eval mode, too.

    Raises:
        CaptureError: If the model cannot be copied.
        SourceError: If a part has no ``forward``, or a name that Python does not have.
        UnsoundError: If a part changes its own attributes.

    Example:
        ```python
        model = nn.Sequential(nn.Linear(3, 3), torch.jit.script(nn.Linear(3, 1)))
        replace_compiled_parts(model, "model.py")[1]  # a CompiledModel
        ```
    """
    if isinstance(model, (torch.jit.ScriptModule, FunctionModule)) or not _list_parts(model):
        return model
    try:
        # Copies of parameters that are made under autograd are results of an operation.
        with torch.no_grad():
            copied = copy.deepcopy(model)
    except Exception as error:
        what, got = "a model with parts in TorchScript cannot be copied", summarize_error(error)
        expected, mend = "a model that copy.deepcopy takes", "return it before torch.jit.script or torch.jit.trace"
        raise CaptureError(what, check="copy", where=where, got=got, expected=expected, mend=mend) from error
    own = dict(model.named_parameters(remove_duplicate=False))
    for name, parameter in copied.named_parameters():
        parameter.requires_grad_(own[name].requires_grad)
    wrapped: dict[nn.Module, nn.Module] = {}
    for path, part in _list_parts(copied).items():
        if part not in wrapped:
            wrapped[part] = wrap_checked(part, where, f"submodule {path!r}")
        parent, _, name = path.rpartition(".")
        copied.get_submodule(parent)._modules[name] = wrapped[part]
    _tie_parameters(model, copied)
    # The user's own model is the reference of a first run.
    model.eval()
    return copied


def _tie_parameters(model: nn.Module, copied: nn.Module) -> None:
    """Make one parameter of those that are one in the model: copies of TorchScript are copies of their own."""
    first_names: dict[int, str] = {}
    copies = dict(copied.named_parameters(remove_duplicate=False))
    for name, parameter in model.named_parameters(remove_duplicate=False):
        first = first_names.setdefault(id(parameter), name)
        if first != name:
            parent, _, own = name.rpartition(".")
            copied.get_submodule(parent)._parameters[own] = copies[first]


def _list_parts(model: nn.Module) -> dict[str, torch.jit.ScriptModule]:
    """List the outermost compiled submodules by path, also such as stand in two places."""
    parts: dict[str, torch.jit.ScriptModule] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, torch.jit.ScriptModule) and not any(path.startswith(f"{outer}.") for outer in parts):
            parts[path] = module
    return parts


def wrap_checked(compiled: torch.jit.ScriptModule, where: str, subject: str = "the file") -> CompiledModel:
    """Wrap a compiled module, in eval mode. ``subject`` is what messages call it.

    Raises ``SourceError`` for one that cannot be called as a function of tensors, ``UnsoundError`` for one that changes
    its own attributes."""
    _check_callable(compiled, where, subject)
    try:
        return wrap_compiled(compiled)
    except RuntimeError as error:
        nodes = [node for _, _, graph in iterate_graphs(compiled) for node in iterate_nodes(graph)]
        writes = [n for n in nodes if n.kind() == "prim::SetAttr" or _writes_attribute(n)]
        if not writes:
            what = f"{subject} cannot be written as a function of its inputs"
            expected, got = "modules of tensors and numbers", summarize_error(error)
            mend = "freeze it where it is made: torch.jit.freeze(module)"
            raise SourceError(what, where=where, got=got, expected=expected, mend=mend) from error
        node = writes[0] if writes[0].kind() == "prim::SetAttr" else writes[0].inputsAt(0).node()
        what, line = f"{subject} changes its own attributes", find_origin(writes[0]).where or where
        got, mend = f"a call changes {node.s('name')!r}", "return state instead of storing it"
        raise UnsoundError(what, check="side effect", where=line, got=got, expected="no state", mend=mend) from None


def _writes_attribute(node: Any) -> bool:
    return node.kind() in _CONTAINER_WRITES and node.inputsAt(0).node().kind() == "prim::GetAttr"


def _check_callable(compiled: torch.jit.ScriptModule, where: str, subject: str) -> None:
    """Raise ``SourceError`` for a module without a ``forward``, or one with a name that Python cannot say."""
    methods = sorted(compiled._c._method_names())
    if "forward" not in methods:
        what, got = f"{subject} has nothing to call", f"the methods {', '.join(methods) or '(none)'}"
        mend = "save a module with a forward: torch.jit.script(module).save(...)"
        if any(name.startswith("forward__") for name in methods):
            what, mend = f"{subject} has several forms of forward", "script a module whose forward calls one of them"
        raise SourceError(what, where=where, got=got, expected="a method forward", mend=mend)
    if name := find_unusable_name(compiled):
        what, mend = f"{subject} has a name that cannot be written in Python", "rename it where it is made"
        expected = "names that Python does not use itself"
        raise SourceError(what, where=where, got=repr(name), expected=expected, mend=mend)

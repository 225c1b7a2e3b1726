"""A model that is TorchScript already: what a file computes, with its tensors under the names that they have there.

The model runs as its file does. Where its tensors are replaced, or its operations recorded, a function of inputs and
tensors runs in its place: the same graph with all calls inlined, and attributes that are no tensors as constants
(torch/csrc/jit/passes: freeze_module.cpp and lower_graph.cpp)."""

from __future__ import annotations

import inspect
import keyword
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import nn

from exporter.common.torch_internals import (
    create_function,
    freeze_module,
    get_current_dispatch_mode,
    get_tracing_state,
    lower_graph,
)
from exporter.model.compiled_results import select_tensors

_Parameter = inspect.Parameter


class _Part(nn.Module):
    """The tensors of a submodule."""

    def __init__(self, module: torch.jit.ScriptModule) -> None:
        super().__init__()
        self._parameters.update(module.named_parameters(recurse=False))
        self._buffers.update(module.named_buffers(recurse=False))
        self._modules.update((name, _Part(child)) for name, child in module.named_children())  # pyright: ignore[reportArgumentType]


class CompiledModel(_Part):
    """The tensors of a compiled module, and its ``forward``.

    Raises ``RuntimeError`` if the module changes attributes of its own: what it computes is no function."""

    def __init__(self, module: torch.jit.ScriptModule) -> None:
        super().__init__(module.eval())
        self.eval()
        self.__dict__["_torchferry_code"] = _Code(module, self)


class _Code:
    """What a compiled module computes: the module itself, and a function of its arguments and tensors."""

    def __init__(self, module: torch.jit.ScriptModule, model: nn.Module) -> None:
        frozen = freeze_module(module._c, [], True, True)
        graph, tensors = lower_graph(frozen._get_method("forward").graph.copy(), frozen)
        self.module, self.originals = module, tensors
        self.function = create_function("forward", graph)
        # What a trace calls, where a first call has shown that some of its results are None.
        self.selected: Callable[..., Any] | None = None
        self.has_run = False
        self.signature = _read_signature(module)
        paths = {id(tensor): path for path, tensor in (*model.named_parameters(), *model.named_buffers())}
        # What is no parameter and no buffer is a constant.
        self.places = [paths.get(id(tensor), tensor) for tensor in tensors]

    def run(self, model: nn.Module, values: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
        bound = self.signature.bind(*values, **keywords)
        bound.apply_defaults()
        tensors = [_find_tensor(model, place) if isinstance(place, str) else place for place in self.places]
        is_recorded = get_tracing_state() is not None or get_current_dispatch_mode() is not None
        if is_recorded or any(a is not b for a, b in zip(tensors, self.originals, strict=True)):
            return (self.selected or self.function)(*bound.arguments.values(), *tensors)
        result = self.module(*bound.arguments.values())
        if not self.has_run:
            self.selected, self.has_run = select_tensors(self.function, result), True
        return result


def _find_tensor(model: nn.Module, path: str) -> torch.Tensor:
    parent, _, name = path.rpartition(".")
    part = model.get_submodule(parent)
    tensor = part._parameters[name] if name in part._parameters else part._buffers[name]
    assert tensor is not None
    return tensor


def wrap_compiled(module: torch.jit.ScriptModule) -> CompiledModel:
    """Wrap a compiled module in one whose ``forward`` has the same arguments by name, and put it into eval mode."""

    def forward(model: CompiledModel, /, *values: Any, **keywords: Any) -> Any:
        return model.__dict__["_torchferry_code"].run(model, values, keywords)

    # An argument of the file may be called self.
    own, named = _Parameter("_model", _Parameter.POSITIONAL_ONLY), cast("Any", forward)
    named.__signature__ = inspect.Signature([own, *_read_signature(module).parameters.values()])
    return type("CompiledModel", (CompiledModel,), {"forward": forward})(module)


def list_compiled(model: nn.Module) -> list[CompiledModel]:
    """List what is compiled of a model: the whole, or parts."""
    return [module for module in model.modules() if isinstance(module, CompiledModel)]


def takes_gradients(model: CompiledModel) -> bool:
    """Return whether the code takes gradients itself."""
    return model.__dict__["_torchferry_code"].function.graph.findNode("aten::grad", True) is not None


def _read_signature(module: torch.jit.ScriptModule) -> inspect.Signature:
    defaults = [a.default_value if a.has_default_value() else _Parameter.empty for a in list_arguments(module)]
    names, kind = [a.name for a in list_arguments(module)], _Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Signature([_Parameter(n, kind, default=d) for n, d in zip(names, defaults, strict=True)])


def find_unusable_name(module: torch.jit.ScriptModule) -> str:
    """Return the name of an argument, a tensor or a submodule that stands for something else in Python; empty if there
    is none.

    TorchScript knows fewer words than Python, and no attributes of Python's modules. Where a model is captured, its
    tensors are attributes, and its arguments are written into source."""
    own_names = set(dir(nn.Module()))
    for argument in list_arguments(module):
        if not argument.name.isidentifier() or keyword.iskeyword(argument.name) or argument.name == "_model":
            return argument.name
    for part in module.modules():
        names = (*part._parameters.keys(), *part._buffers.keys(), *part._modules.keys())
        if unusable := next((name for name in names if name in own_names or keyword.iskeyword(name)), ""):
            return unusable
    return ""


def list_arguments(module: torch.jit.ScriptModule) -> Sequence[Any]:
    """Return torch's records of the arguments of ``forward``."""
    return module._c._get_method("forward").schema.arguments[1:]

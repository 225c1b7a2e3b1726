"""Ways to reach into torch for a while: warnings silenced, tracing paused, functions and parameters replaced."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.autograd import graph
from torch.overrides import TorchFunctionMode

from exporter.common.torch_internals import (
    DYNAMO,
    ENGINE_ENTRY,
    TorchDispatchMode,
    get_compiler_artifacts,
    set_tracing_state,
)

# Deprecation messages of torch.jit (DeprecationWarning up to torch 2.13, FutureWarning from 2.14).
DEPRECATIONS = r"`torch\.jit\.\w+` is (deprecated|not supported in Python 3\.14)"

Entry = Callable[..., Any]


@contextlib.contextmanager
def ignore_deprecations() -> Iterator[None]:
    """Ignore the deprecation warnings of torch.jit."""
    with warnings.catch_warnings():
        for category in (DeprecationWarning, FutureWarning):
            warnings.filterwarnings("ignore", DEPRECATIONS, category)
        yield


@contextlib.contextmanager
def pause_tracing(state: Any) -> Iterator[None]:
    """Pause tracing, and restore ``state`` on exit."""
    set_tracing_state(None)
    try:
        yield
    finally:
        set_tracing_state(state)


class FunctionHook(TorchFunctionMode):
    """A mode that hands each call of a torch function to ``intercept``, one frame above."""

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        return self.intercept(func, args, kwargs or {})

    def intercept(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return the result of the call."""
        raise NotImplementedError


class DispatchHook(TorchDispatchMode):
    """A mode that sees torch's operators.

    A plain ``TorchDispatchMode`` imports torch's compiler at the first operator. That takes a second, and fails if the
    mode itself fails on an operator of the import."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


@contextlib.contextmanager
def postpone_compiler() -> Iterator[None]:
    """Have torch go on without its compiler, which takes a second to import, in a process that ends soon.

    A package without its code stands in for ``torch._dynamo``. Its modules can be imported; its ``disable`` returns
    functions unchanged, and torch goes on with these afterwards. Any other use of it fails: run that again outside."""
    if DYNAMO in sys.modules or (spec := importlib.util.find_spec(DYNAMO)) is None:
        yield
        return
    package: Any = importlib.util.module_from_spec(spec)
    package.disable = _keep_function
    sys.modules[DYNAMO] = torch._dynamo = package
    try:
        yield
    finally:
        for name in [n for n in sys.modules if n == DYNAMO or n.startswith(f"{DYNAMO}.")]:
            del sys.modules[name]
        del torch._dynamo
        # What an import of the compiler has registered before it failed, it registers again.
        artifacts = get_compiler_artifacts()
        for kind in [kind for kind, cls in artifacts.items() if cls.__module__ not in sys.modules]:
            del artifacts[kind]


def _keep_function(function: Callable[..., Any] | None = None, *args: Any, **kwargs: Any) -> Any:
    return _keep_function if function is None else function


@contextlib.contextmanager
def patch_forward(replacements: Mapping[nn.Module, Callable[..., Any]]) -> Iterator[None]:
    """Replace the ``forward`` of each module inside the context, wherever the module is referenced."""
    originals = {module: module.__dict__.get("forward") for module in replacements}
    for module, replacement in replacements.items():
        module.__dict__["forward"] = replacement
    try:
        yield
    finally:
        for module, original in originals.items():
            if original is None:
                del module.__dict__["forward"]
            else:
                module.__dict__["forward"] = original


@contextlib.contextmanager
def swap_parameters(module: nn.Module, values: Mapping[str, torch.Tensor]) -> Iterator[None]:
    """Replace the parameters or buffers of these names by ``values`` while the context lasts, wherever they are held.

    Every place is changed once: ``torch.func.functional_call`` does it twice to a submodule that is registered under
    two names, and then restores the value that it had set there itself."""
    tensors = dict(module.named_buffers()) | dict(module.named_parameters())
    replacements = {id(tensors[name]): value for name, value in values.items()}
    registries: list[dict[str, Any]] = [r for m in module.modules() for r in (m._parameters, m._buffers)]
    places = [
        (registry, *entry) for registry in registries for entry in registry.items() if id(entry[1]) in replacements
    ]
    for registry, name, tensor in places:
        registry[name] = replacements[id(tensor)]
    try:
        yield
    finally:
        for registry, name, tensor in places:
            registry[name] = tensor


@contextlib.contextmanager
def patch_autograd_engine(stand_in: Callable[[Entry], Entry]) -> Iterator[None]:
    """Call ``stand_in`` of the engine's own entry in place of that entry while the context lasts."""
    originals = [(module, getattr(module, ENGINE_ENTRY)) for module in (graph, torch.autograd)]
    for module, original in originals:
        setattr(module, ENGINE_ENTRY, stand_in(original))
    try:
        yield
    finally:
        for module, original in originals:
            setattr(module, ENGINE_ENTRY, original)

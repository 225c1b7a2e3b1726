"""Ways to reach into torch for a while: warnings silenced, tracing paused, ``forward`` replaced."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

# Deprecation messages of torch.jit (DeprecationWarning up to torch 2.13, FutureWarning from 2.14).
DEPRECATIONS = r"`torch\.jit\.\w+` is (deprecated|not supported in Python 3\.14)"


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
    # The stubs of torch._C do not know this function.
    set_tracing_state = getattr(torch._C, "_set_tracing_state")  # noqa: B009
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

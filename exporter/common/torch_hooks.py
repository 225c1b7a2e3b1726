"""Ways to reach into torch for a while: warnings silenced, tracing paused, ``forward`` replaced."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

# torch.jit's own deprecation texts (DeprecationWarning up to torch 2.13, FutureWarning from 2.14).
DEPRECATIONS = r"`torch\.jit\.\w+` is (deprecated|not supported in Python 3\.14)"


@contextlib.contextmanager
def quiet_deprecations() -> Iterator[None]:
    with warnings.catch_warnings():
        for category in (DeprecationWarning, FutureWarning):
            warnings.filterwarnings("ignore", DEPRECATIONS, category)
        yield


@contextlib.contextmanager
def tracing_paused(state: Any) -> Iterator[None]:
    # The stubs of torch._C do not know this function.
    set_tracing_state = getattr(torch._C, "_set_tracing_state")  # noqa: B009
    set_tracing_state(None)
    try:
        yield
    finally:
        set_tracing_state(state)


@contextlib.contextmanager
def called_instead(others: Mapping[nn.Module, Callable[..., Any]]) -> Iterator[None]:
    """While this lasts, each module's ``forward`` is another; wherever the module is held."""
    before = {module: module.__dict__.get("forward") for module in others}
    for module, other in others.items():
        module.__dict__["forward"] = other
    try:
        yield
    finally:
        for module, own in before.items():
            if own is None:
                del module.__dict__["forward"]
            else:
                module.__dict__["forward"] = own

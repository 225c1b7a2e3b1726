"""Custom autograd functions: what is captured is what their ``forward`` computes.

A trace keeps ``Function.apply`` as a call back into Python, which no file can hold. The file needs no autograd, so
only ``forward`` matters, and it is run in the open.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.autograd import Function


class _Context:
    """Takes what ``forward`` saves for a backward pass that is not captured."""

    needs_input_grad = ()
    saved_tensors = ()

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved_tensors = tensors

    def save_for_forward(self, *tensors: Any) -> None:
        pass

    def mark_dirty(self, *tensors: Any) -> None:
        pass

    def mark_non_differentiable(self, *tensors: Any) -> None:
        pass

    def set_materialize_grads(self, value: bool) -> None:
        pass


@contextlib.contextmanager
def functions_inlined() -> Iterator[None]:
    """While tracing, ``apply`` of a custom function runs its ``forward``."""
    original = Function.__dict__["apply"]

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if not torch._C._get_tracing_state() or getattr(cls, "stays_a_call", False):
            return original.__func__(cls, *args, **kwargs)
        if cls.setup_context is not Function.setup_context:
            return cls.forward(*args, **kwargs)
        return cls.forward(_Context(), *args, **kwargs)

    setattr(Function, "apply", classmethod(apply))  # noqa: B010
    try:
        yield
    finally:
        setattr(Function, "apply", original)  # noqa: B010

"""Custom autograd functions: what is captured is what their ``forward`` computes.

A trace keeps ``Function.apply`` as a call back into Python, which no file can hold. The file needs no autograd, so
only ``forward`` matters, and it is run in the open.
"""

from __future__ import annotations

import contextlib
import gc
import types
from collections.abc import Iterator
from typing import Any

import torch
from torch.autograd import Function


class _Context:
    """Takes what ``forward`` saves for a backward pass that is not captured."""

    saved_tensors = ()

    def __init__(self, inputs: int) -> None:
        self.needs_input_grad = (False,) * inputs

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
        return cls.forward(_Context(len(args)), *args, **kwargs)

    bound = bound_before()
    setattr(Function, "apply", classmethod(apply))  # noqa: B010
    for place, name, method in bound:
        place[name] = types.MethodType(apply, method.__self__)
    try:
        yield
    finally:
        setattr(Function, "apply", original)  # noqa: B010
        for place, name, method in bound:
            place[name] = method


_Bound = list[tuple[dict[Any, Any], Any, types.MethodType]]
_SEARCHED: dict[tuple[type, ...], _Bound] = {}


def bound_before() -> _Bound:
    """Where ``apply`` was taken from its function before: ``cube_root = CubeRoot.apply`` in a file, as is usual.

    A search through memory, made once for the functions that there are.
    """
    kinds = tuple(kind for kind in Function.__subclasses__() if not kind.__module__.startswith("torch"))
    if kinds not in _SEARCHED:
        original = Function.__dict__["apply"].__func__
        methods = [m for m in (gc.get_referrers(*kinds) if kinds else ()) if isinstance(m, types.MethodType)]
        methods = [m for m in methods if m.__func__ is original]
        places = [p for p in (gc.get_referrers(*methods) if methods else ()) if isinstance(p, dict)]
        known = {id(m): m for m in methods}
        _SEARCHED[kinds] = [
            (place, name, known[id(value)])
            for place in places
            if place is not known
            for name, value in list(place.items())
            if id(value) in known
        ]
    return _SEARCHED[kinds]

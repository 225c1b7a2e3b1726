"""Custom autograd functions: the capture holds what their ``forward`` computes.

A trace keeps ``Function.apply`` as a call back into Python, which no file can hold. The file needs no autograd, so
only ``forward`` matters, and its operations are traced."""

from __future__ import annotations

import contextlib
import gc
import types
from collections.abc import Iterator
from typing import Any

from torch.autograd import Function

from exporter.common.torch_internals import get_tracing_state


class _Context:
    """A context that takes what ``forward`` saves for a backward pass that is not captured."""

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
def inline_custom_functions() -> Iterator[None]:
    """Run the ``forward`` of a custom function instead of its ``apply`` while tracing."""
    original = Function.__dict__["apply"]

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if not get_tracing_state() or getattr(cls, "stays_a_call", False):
            return original.__get__(None, cls)(*args, **kwargs)
        if cls.setup_context is not Function.setup_context:
            return cls.forward(*args, **kwargs)
        return cls.forward(_Context(len(args)), *args, **kwargs)

    bound_methods = find_bound_applies()
    setattr(Function, "apply", classmethod(apply))  # noqa: B010
    for namespace, name, method in bound_methods:
        namespace[name] = types.MethodType(apply, method.__self__)
    try:
        yield
    finally:
        setattr(Function, "apply", original)  # noqa: B010
        for namespace, name, method in bound_methods:
            namespace[name] = method


_BoundMethods = list[tuple[dict[Any, Any], Any, Any]]
# ``apply`` is written in Python up to torch 2.13, and in C++ from 2.14.
_METHODS = (types.MethodType, types.BuiltinMethodType)
_KNOWN_METHODS: dict[tuple[type, ...], _BoundMethods] = {}


def find_bound_applies() -> _BoundMethods:
    """Find where ``apply`` was taken from its function before: ``cube_root = CubeRoot.apply`` in a file, as is usual.

    This searches the memory, once for each set of custom functions."""
    classes = tuple(cls for cls in Function.__subclasses__() if not cls.__module__.startswith("torch"))
    if classes not in _KNOWN_METHODS:
        methods = [m for m in (gc.get_referrers(*classes) if classes else ()) if isinstance(m, _METHODS)]
        original = Function.__dict__["apply"]
        methods = [m for m in methods if m.__self__ in classes and m == original.__get__(None, m.__self__)]
        namespaces = [p for p in (gc.get_referrers(*methods) if methods else ()) if isinstance(p, dict)]
        methods_by_id = {id(m): m for m in methods}
        spaces = [namespace for namespace in namespaces if namespace is not methods_by_id]
        entries = [(space, name, id(value)) for space in spaces for name, value in list(space.items())]
        _KNOWN_METHODS[classes] = [(s, n, methods_by_id[key]) for s, n, key in entries if key in methods_by_id]
    return _KNOWN_METHODS[classes]

"""A function of tensors as a model: a loss and its gradients, a step of an optimiser.

Modules and parameters that the function reads from its surroundings become the model's own, under the names that the
code has for them, so that the file offers them to be set.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CodeType, FunctionType, ModuleType
from typing import Any, TypeVar, cast

import torch
from torch import nn

from exporter.archive.tensor_spec import Signature, TensorSpec
from exporter.common.user_code import INTERNAL_PATH_PREFIXES


class FunctionModule(nn.Module):
    """A module whose ``forward`` is a function of tensors, with the modules and parameters that the function reads."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.forward = function
        for attribute in ("signature", "example_inputs"):
            if hasattr(function, attribute):
                setattr(self, attribute, getattr(function, attribute))
        for name, value in _iter_read_values(function, set()):
            unique_name = re.sub(r"\W", "_", name)
            while hasattr(self, unique_name):
                unique_name += "_"
            if isinstance(value, nn.Module):
                self.add_module(unique_name, value)
            else:
                # A tensor that requires gradients serves as a parameter; register_parameter takes no other class.
                self._parameters[unique_name] = cast(nn.Parameter, value)

    def __reduce__(self) -> tuple[Any, ...]:
        # In another process the function's names refer to other objects.
        return _rebuild, (self.forward, self.state_dict())


def _rebuild(function: Callable[..., Any], state: Mapping[str, torch.Tensor]) -> FunctionModule:
    module = FunctionModule(function)
    module.load_state_dict(state)
    return module


AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])


def declare(
    inputs: Mapping[str, Sequence[int | str] | TensorSpec],
    outputs: Mapping[str, Sequence[int | str] | TensorSpec] | None = None,
    *,
    dtype: str = "float64",
    batch_ndim: int | None = None,
) -> Callable[[AnyFunction], AnyFunction]:
    """Declare what a function of tensors takes and returns; a module has an attribute ``signature`` instead.

    Args:
        inputs: As for ``Signature.of``.
        outputs: As for ``Signature.of``.
        dtype: As for ``Signature.of``.
        batch_ndim: As for ``Signature.of``.

    Returns:
        A decorator that returns the function itself, with its signature.

    Example:
        ```python
        @declare({"x": ("n", 3)}, {"loss": ()})
        def loss(x):
            return (x**2).sum()
        ```
    """
    signature = Signature.of(inputs, outputs, dtype=dtype, batch_ndim=batch_ndim)

    def set_on(function: AnyFunction) -> AnyFunction:
        function.__dict__["signature"] = signature
        return function

    return set_on


def takes_tensors(value: Any) -> bool:
    """Return whether this is a function of tensors, and not a factory: it declares its inputs."""
    return not isinstance(value, type) and (hasattr(value, "signature") or hasattr(value, "example_inputs"))


def _iter_read_values(function: Any, visited: set[int]) -> Iterator[tuple[str, nn.Module | torch.Tensor]]:
    """Yield modules and parameters that a function, or a function that it calls, reads.

    They are in its closure, its globals, its defaults or its object."""
    if id(function) in visited:
        return
    visited.add(id(function))
    if isinstance(function, functools.partial):
        yield from _iter_read_values(function.func, visited)
        candidates = {f"argument_{i}": v for i, v in enumerate(function.args)} | function.keywords
        yield from _iter_values(candidates, visited)
        return
    function = inspect.unwrap(function)
    owner = getattr(function, "__self__", None)
    if not isinstance(owner, (type, ModuleType)):
        attributes = {"self": owner} if isinstance(owner, nn.Module) else getattr(owner, "__dict__", {})
        yield from _iter_values(attributes, visited)
    inner = function if isinstance(function, FunctionType) else getattr(function, "__func__", None)
    if inner is None:
        # An object that can be called.
        yield from _iter_values(getattr(function, "__dict__", {}), visited)
        inner = vars(type(function)).get("__call__")
    if not isinstance(inner, FunctionType) or inner.__code__.co_filename.startswith(INTERNAL_PATH_PREFIXES):
        return
    defaults = inspect.signature(inner).parameters.values()
    candidates = {p.name: p.default for p in defaults if p.default is not p.empty}
    for name, cell in zip(inner.__code__.co_freevars, inner.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):
            # A cell may be empty yet.
            candidates[name] = cell.cell_contents
    names = _list_names(inner.__code__)
    candidates |= {name: inner.__globals__[name] for name in names if name in inner.__globals__}
    for module in [v for v in candidates.values() if isinstance(v, ModuleType)]:
        if not str(getattr(module, "__file__", None) or INTERNAL_PATH_PREFIXES[0]).startswith(INTERNAL_PATH_PREFIXES):
            candidates |= {n: vars(module)[n] for n in names if n in vars(module) and n not in candidates}
    yield from _iter_values(candidates, visited)


def _iter_values(candidates: Mapping[str, Any], visited: set[int]) -> Iterator[tuple[str, nn.Module | torch.Tensor]]:
    for name, value in candidates.items():
        if isinstance(value, nn.Module) or (isinstance(value, torch.Tensor) and value.requires_grad and value.is_leaf):
            if id(value) not in visited:
                visited.add(id(value))
                yield name, value
        elif isinstance(value, (torch.Tensor, type, ModuleType)):
            continue
        elif isinstance(value, functools.partial) or inspect.isroutine(value):
            yield from _iter_read_values(value, visited)
        elif id(value) not in visited:
            # A value that contains itself is visited once.
            yield from _iter_values({f"{name}_{k}": v for k, v in _list_parts(value, visited).items()}, visited)
            if _is_user_object(value) and callable(value):
                yield from _iter_read_values(type(value).__call__, visited)


def _list_parts(value: Any, visited: set[int]) -> dict[str, Any]:
    visited.add(id(value))
    if isinstance(value, (list, tuple)):
        return {str(i): part for i, part in enumerate(value)}
    if isinstance(value, Mapping):
        return {str(key): part for key, part in value.items()}
    return dict(vars(value)) if _is_user_object(value) else {}


def _is_user_object(value: Any) -> bool:
    """Return whether a value is an object of one of the user's classes, with attributes."""
    name = type(value).__module__
    file = getattr(sys.modules.get(name), "__file__", None) or INTERNAL_PATH_PREFIXES[0]
    is_stdlib = name != "__main__" and name.partition(".")[0] in sys.stdlib_module_names
    return not file.startswith(INTERNAL_PATH_PREFIXES) and not is_stdlib and hasattr(value, "__dict__")


def _list_names(code: CodeType) -> list[str]:
    """Return names of globals and attributes in the code and in the functions inside it."""
    inner = [name for const in code.co_consts if isinstance(const, CodeType) for name in _list_names(const)]
    return list(dict.fromkeys([*code.co_names, *inner]))

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
from exporter.common.user_code import NOT_THE_USERS


class Function(nn.Module):
    """``forward`` is the function itself."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.forward = function
        for attribute in ("signature", "example_inputs"):
            if hasattr(function, attribute):
                setattr(self, attribute, getattr(function, attribute))
        seen: set[int] = set()
        for name, value in _read_by(function, seen):
            own = re.sub(r"\W", "_", name)
            while hasattr(self, own):
                own += "_"
            if isinstance(value, nn.Module):
                self.add_module(own, value)
            else:
                # A tensor that asks for gradients is as good a parameter; register_parameter takes no other class.
                self._parameters[own] = cast(nn.Parameter, value)

    def __reduce__(self) -> tuple[Any, ...]:
        # Another process has other objects behind the function's names.
        return _made_again, (self.forward, self.state_dict())


def _made_again(function: Callable[..., Any], state: Mapping[str, torch.Tensor]) -> Function:
    made = Function(function)
    made.load_state_dict(state)
    return made


Declared = TypeVar("Declared", bound=Callable[..., Any])


def declare(
    inputs: Mapping[str, Sequence[int | str] | TensorSpec],
    outputs: Mapping[str, Sequence[int | str] | TensorSpec] | None = None,
    *,
    dtype: str = "float64",
    batch_ndim: int | None = None,
) -> Callable[[Declared], Declared]:
    """Say what a function of tensors takes and returns: ``@declare({"x": ("n", 3)}, {"loss": ()})``.

    As ``Signature.of``; a module has an attribute ``signature`` instead.
    """
    signature = Signature.of(inputs, outputs, dtype=dtype, batch_ndim=batch_ndim)

    def set_on(function: Declared) -> Declared:
        function.__dict__["signature"] = signature
        return function

    return set_on


def takes_tensors(value: Any) -> bool:
    """Whether this is a function of tensors, and not a factory: it says what it is given."""
    return not isinstance(value, type) and (hasattr(value, "signature") or hasattr(value, "example_inputs"))


def _read_by(function: Any, seen: set[int]) -> Iterator[tuple[str, nn.Module | torch.Tensor]]:
    """Modules and parameters in the closure, the globals, the defaults and the object of a function, and of those that
    it calls."""
    if id(function) in seen:
        return
    seen.add(id(function))
    if isinstance(function, functools.partial):
        yield from _read_by(function.func, seen)
        held = {f"argument_{i}": v for i, v in enumerate(function.args)} | function.keywords
        yield from _among(held, seen)
        return
    function = inspect.unwrap(function)
    owner = getattr(function, "__self__", None)
    if not isinstance(owner, (type, ModuleType)):
        yield from _among({"self": owner} if isinstance(owner, nn.Module) else getattr(owner, "__dict__", {}), seen)
    inner = function if isinstance(function, FunctionType) else getattr(function, "__func__", None)
    if inner is None:
        # An object that can be called.
        yield from _among(getattr(function, "__dict__", {}), seen)
        inner = vars(type(function)).get("__call__")
    if not isinstance(inner, FunctionType) or inner.__code__.co_filename.startswith(NOT_THE_USERS):
        return
    defaults = inspect.signature(inner).parameters.values()
    held = {p.name: p.default for p in defaults if p.default is not p.empty}
    for name, cell in zip(inner.__code__.co_freevars, inner.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):
            # A cell may be empty yet.
            held[name] = cell.cell_contents
    names = _names(inner.__code__)
    held |= {name: inner.__globals__[name] for name in names if name in inner.__globals__}
    for module in [v for v in held.values() if isinstance(v, ModuleType)]:
        if not str(getattr(module, "__file__", None) or NOT_THE_USERS[0]).startswith(NOT_THE_USERS):
            held |= {name: vars(module)[name] for name in names if name in vars(module) and name not in held}
    yield from _among(held, seen)


def _among(held: Mapping[str, Any], seen: set[int]) -> Iterator[tuple[str, nn.Module | torch.Tensor]]:
    for name, value in held.items():
        if isinstance(value, nn.Module) or (isinstance(value, torch.Tensor) and value.requires_grad and value.is_leaf):
            if id(value) not in seen:
                seen.add(id(value))
                yield name, value
        elif isinstance(value, (torch.Tensor, type, ModuleType)):
            continue
        elif isinstance(value, functools.partial) or inspect.isroutine(value):
            yield from _read_by(value, seen)
        elif id(value) not in seen:
            # What holds itself is walked through once.
            yield from _among({f"{name}_{k}": v for k, v in _parts(value, seen).items()}, seen)
            if _is_users(value) and callable(value):
                yield from _read_by(type(value).__call__, seen)


def _parts(value: Any, seen: set[int]) -> dict[str, Any]:
    seen.add(id(value))
    if isinstance(value, (list, tuple)):
        return {str(i): part for i, part in enumerate(value)}
    if isinstance(value, Mapping):
        return {str(key): part for key, part in value.items()}
    return dict(vars(value)) if _is_users(value) else {}


def _is_users(value: Any) -> bool:
    """An object of a class of the user's, with attributes."""
    module = sys.modules.get(type(value).__module__)
    file = getattr(module, "__file__", None) or NOT_THE_USERS[0]
    known = type(value).__module__.partition(".")[0] in sys.stdlib_module_names
    own = not file.startswith(NOT_THE_USERS) and (not known or type(value).__module__ == "__main__")
    return own and hasattr(value, "__dict__")


def _names(code: CodeType) -> list[str]:
    """Names of globals and attributes that the code, and the functions inside it, speak of."""
    inner = [name for const in code.co_consts if isinstance(const, CodeType) for name in _names(const)]
    return list(dict.fromkeys([*code.co_names, *inner]))

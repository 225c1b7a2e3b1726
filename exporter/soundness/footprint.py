"""What Python code of the user's a run went through, and the state that it can reach.

State is what outlives a call: attributes of modules, globals and closures of the functions that ran, default
arguments, attributes of classes. A leaf of it has a label, a way to read it and, where there is one, a way to set it.
"""

from __future__ import annotations

import collections
import copy
import functools
import gc
import linecache
import random
import re
import sys
import sysconfig
import threading
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from exporter.reads import NOT_THE_USERS
from exporter.soundness.recording import digest

STDLIB = tuple({sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")})
DEPTH, LEAVES = 5, 4000
_INTERNALS = frozenset(vars(nn.Module()))


def is_users(file: str) -> bool:
    """Whether a file is the user's: neither torch's, nor torchferry's, nor the standard library's."""
    return not file.startswith(NOT_THE_USERS) and (not file.startswith(STDLIB) or "site-packages" in file)


@dataclass(frozen=True)
class Leaf:
    """``fingerprint`` changes with the value; ``value`` and ``put`` are for plain scalars and lists."""

    fingerprint: str
    value: Any = None
    put: Callable[[Any], None] | None = None


class Footprint:
    """A context manager that notes the code objects of the user's that run, with the globals of each."""

    def __init__(self) -> None:
        self.codes: dict[types.CodeType, dict[str, Any]] = {}
        self._searched = 0
        self._found: list[types.FunctionType] = []

    def __enter__(self) -> Footprint:
        self._before = sys.getprofile()
        sys.setprofile(self._event)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(self._before)

    def _event(self, frame: types.FrameType, event: str, arg: Any) -> None:
        if event == "call" and frame.f_code not in self.codes and is_users(frame.f_code.co_filename):
            self.codes[frame.f_code] = frame.f_globals

    def state(self, module: nn.Module) -> dict[str, Leaf]:
        """Every leaf by label, in a fixed order."""
        found: dict[str, Leaf] = {}
        seen: set[int] = set()
        for label, value, put in self._roots(module):
            for name, leaf in _leaves(label, value, put, DEPTH, seen):
                if len(found) >= LEAVES:
                    return found
                found.setdefault(name, leaf)
        return found

    def _roots(self, module: nn.Module) -> Iterator[tuple[str, Any, Callable[[Any], None] | None]]:
        for path, child in module.named_modules():
            for name, value in list(vars(child).items()):
                if name not in _INTERNALS:
                    label = f"attribute {f'{path}.{name}' if path else name!r}"
                    yield label, value, functools.partial(setattr, child, name)
            for hooks in (child._forward_hooks, child._forward_pre_hooks):
                for i, hook in enumerate(hooks.values()):
                    owner = getattr(hook, "__self__", None)
                    if owner is not None and not isinstance(owner, nn.Module):
                        yield f"hook {i} of {path or 'the model'}", owner, None
        classes = {type(child): None for _, child in module.named_modules() if is_users(_file_of(type(child)))}
        for code, namespace in list(self.codes.items()):
            for name in code.co_names:
                value = namespace.get(name)
                if name in namespace and not _is_code(value) and not isinstance(value, types.ModuleType):
                    yield f"global {name!r}", value, functools.partial(namespace.__setitem__, name)
                elif isinstance(value, type) and is_users(_file_of(value)):
                    classes[value] = None
                elif isinstance(value, functools._lru_cache_wrapper):
                    yield f"cache of {name!r}", value, None
        for kind in classes:
            for name, value in list(vars(kind).items()):
                if not name.startswith("__") and not _is_code(value):
                    yield f"class attribute {kind.__name__}.{name}", value, functools.partial(setattr, kind, name)
        for function in self._functions():
            yield from _of_function(function)

    def _functions(self) -> list[types.FunctionType]:
        """The functions that were made of the code that ran; a search through memory, done when there is new code."""
        if self._searched != len(self.codes):
            self._searched = len(self.codes)
            referrers = gc.get_referrers(*self.codes) if self.codes else []
            self._found = [f for f in referrers if isinstance(f, types.FunctionType) and f.__code__ in self.codes]
        return self._found


def _of_function(function: types.FunctionType) -> Iterator[tuple[str, Any, Callable[[Any], None] | None]]:
    name = function.__qualname__
    for i, value in enumerate(function.__defaults__ or ()):
        yield f"default argument {i} of {name}", value, None
    for key, value in (function.__kwdefaults__ or {}).items():
        yield f"default argument {key!r} of {name}", value, None
    for key, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            value = cell.cell_contents
        except ValueError:
            continue
        if not _is_code(value):
            yield f"closure {key!r} of {name}", value, functools.partial(setattr, cell, "cell_contents")
    for key, value in list(vars(function).items()):
        if not _is_code(value):
            yield f"attribute {key!r} of function {name}", value, functools.partial(setattr, function, key)


def _file_of(kind: type) -> str:
    return getattr(sys.modules.get(kind.__module__), "__file__", None) or "<"


def _is_code(value: Any) -> bool:
    return isinstance(
        value,
        (
            types.FunctionType,
            types.BuiltinFunctionType,
            types.MethodType,
            type,
            property,
            classmethod,
            staticmethod,
            torch.jit.ScriptFunction,
            functools._lru_cache_wrapper,
        ),
    )


def _leaves(
    label: str, value: Any, put: Callable[[Any], None] | None, depth: int, seen: set[int]
) -> Iterator[tuple[str, Leaf]]:
    if isinstance(value, torch.Tensor):
        held = value.detach()
        text = f"{held.dtype} {list(held.shape)} {value._version}"
        yield label, Leaf(text + (digest(held) if held.layout == torch.strided and held.device.type == "cpu" else ""))
    elif isinstance(value, (bool, int, float, complex, str, bytes, type(None))):
        yield label, Leaf(repr(value), value, put)
    elif isinstance(value, nn.Module) or id(value) in seen or depth == 0:
        yield label, Leaf(f"{type(value).__name__} {id(value)}")
    elif isinstance(value, torch.Generator):
        yield label, Leaf(digest(value.get_state()))
    elif isinstance(value, random.Random):
        yield label, Leaf(str(hash(value.getstate())))
    elif isinstance(value, functools._lru_cache_wrapper):
        yield label, Leaf(str(value.cache_info().currsize))
    elif isinstance(value, types.GeneratorType):
        yield label, Leaf(f"{value.gi_frame and value.gi_frame.f_lasti}")
    elif isinstance(value, dict):
        seen.add(id(value))
        yield label, Leaf(f"{type(value).__name__} of {len(value)}: {list(map(str, value))[:50]}")
        for key, part in list(value.items())[:200]:
            setter = functools.partial(value.__setitem__, key)
            yield from _leaves(f"{label}[{key!r}]", part, setter, depth - 1, seen)
    elif isinstance(value, (list, tuple, set, frozenset, collections.deque)):
        seen.add(id(value))
        whole = value if isinstance(value, list) else None
        setter = None if whole is None else functools.partial(_set_list, whole)
        yield label, Leaf(f"{type(value).__name__} of {len(value)}", whole, setter)
        for i, part in enumerate(list(value)[:200]):
            setter = functools.partial(value.__setitem__, i) if isinstance(value, list) else None
            yield from _leaves(f"{label}[{i}]", part, setter, depth - 1, seen)
    elif isinstance(value, type):
        return
    elif hasattr(value, "__array__") and hasattr(value, "tobytes"):
        yield label, Leaf(f"{getattr(value, 'shape', '')} {hash(value.tobytes())}")
    elif hasattr(value, "__dict__") and (is_users(_file_of(type(value))) or isinstance(value, threading.local)):
        seen.add(id(value))
        for key, part in list(vars(value).items())[:200]:
            setter = functools.partial(setattr, value, key)
            yield from _leaves(f"{label}.{key}", part, setter, depth - 1, seen)
    elif type(value).__module__ == "itertools":
        yield label, Leaf(repr(value))
    else:
        yield label, Leaf(f"{type(value).__name__} {id(value)}")


def _set_list(whole: list[Any], value: list[Any]) -> None:
    whole[:] = value


def other_values(value: Any) -> list[Any]:
    """Other values of the same kind, for state that changes: later counts, longer lists."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, value + 1000, 2 * value + 7]
    if isinstance(value, float):
        return [3 * value + 1, 0.5 * value]
    if isinstance(value, str):
        return [value + "?"]
    if isinstance(value, list) and value:
        return [[*value, *(copy.copy(value[-1]) for _ in range(1000))]]
    return []


def suspect_line(run: Callable[[], Any], pattern: str) -> str:
    """``file:line`` of the first line of the code that runs with a call of this kind; empty where there is none."""
    with Footprint() as footprint:
        run()
    for code in footprint.codes:
        for line in sorted({n for _, _, n in code.co_lines() if n}):
            if re.search(pattern, linecache.getline(code.co_filename, line).split("#")[0]):
                return f"{code.co_filename}:{line}"
    return ""

"""The user's Python code that a run went through, and the state that this code can reach.

State is what outlives a call: attributes of modules, globals and closures of the functions that ran, default
arguments, attributes of classes. A leaf of it has a label, a way to read it and, where there is one, a way to set it.
"""

from __future__ import annotations

import array
import ast
import collections
import copy
import functools
import gc
import itertools
import linecache
import random
import re
import sys
import sysconfig
import threading
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from exporter.common.garbage_collection import pause_gc
from exporter.common.tensors import count_writes
from exporter.common.user_code import INTERNAL_PATH_PREFIXES
from exporter.soundness.run_recording import digest

STDLIB = tuple({f"{sysconfig.get_path('stdlib')}/", f"{sysconfig.get_path('platstdlib')}/"})
DEPTH, LEAVES = 5, 4000
# How far a count is advanced; the size of the largest tensor or array that may be a count.
FAR, SMALL = 1000, 16
_NON_USER_MODULES = frozenset({"exporter", "runtime_checks", "torchferry", "torch", *sys.stdlib_module_names})
_PYTHON_CODE = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, property, classmethod, staticmethod)
_INTERNALS = frozenset(vars(nn.Module()))


def is_user_file(file: str) -> bool:
    """Return whether a file is the user's: neither torch's, nor torchferry's, nor the standard library's."""
    return not file.startswith(INTERNAL_PATH_PREFIXES) and (not file.startswith(STDLIB) or "site-packages" in file)


def runs_user_code(frame: types.FrameType) -> bool:
    """Return whether a frame runs the user's code.

    The code that ``dataclass`` and ``namedtuple`` write has no file: its module tells whose it is."""
    file = frame.f_code.co_filename
    if file == "<string>":
        module = str(frame.f_globals.get("__name__")).partition(".")[0]
        return module not in _NON_USER_MODULES and not module.startswith("namedtuple_")
    return is_user_file(file)


@dataclass(frozen=True)
class Leaf:
    """A value of the state: ``fingerprint`` changes with it; ``value`` and ``put`` are for leaves that can be set."""

    fingerprint: str
    value: Any = None
    put: Callable[[Any], Any] | None = None


class Footprint:
    """A context manager that records the user's code objects that run, with the globals of each."""

    def __init__(self) -> None:
        self.codes: dict[types.CodeType, dict[str, Any]] = {}
        self.has_libraries = True
        # All of the code that ran, by their ids.
        self._namespaces: dict[int, dict[str, Any]] = {}
        self._searched_counts = (0, 0)
        self._function_cache: list[types.FunctionType] = []
        # Which this one is a part of.
        self._whole: Footprint | None = None

    def __enter__(self) -> Footprint:
        self._gc_pause = pause_gc()
        self._gc_pause.__enter__()
        self._previous_profile = sys.getprofile()
        sys.setprofile(self._record_call)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(self._previous_profile)
        self._gc_pause.__exit__(None, None, None)

    def _record_call(self, frame: types.FrameType, event: str, arg: Any) -> None:
        if event != "call":
            return
        namespace = self.codes.get(frame.f_code)
        if namespace is None and runs_user_code(frame):
            namespace = self.codes[frame.f_code] = frame.f_globals
            self._namespaces[id(namespace)] = namespace
        elif namespace is not None and namespace is not frame.f_globals:
            # Another function of the same code.
            self._namespaces[id(frame.f_globals)] = frame.f_globals

    def without_libraries(self) -> Footprint:
        """Return the footprint without the code of installed libraries, and attributes of their modules."""
        other = Footprint()
        other.has_libraries, other._whole = False, self
        other.codes = {c: space for c, space in self.codes.items() if "site-packages" not in c.co_filename}
        return other

    def read_state(self, module: nn.Module) -> dict[str, Leaf]:
        """Return every leaf by label, in a fixed order."""
        leaves: dict[str, Leaf] = {}
        visited: set[int] = {id(child) for child in module.modules()}
        for label, value, put in self._iter_roots(module):
            for name, leaf in iter_leaves(label, value, put, DEPTH, visited):
                if len(leaves) >= LEAVES:
                    return leaves
                leaves.setdefault(name, leaf)
        return leaves

    def read_fingerprints(self, module: nn.Module) -> dict[str, str]:
        """Return the fingerprint of every leaf by label."""
        return {label: leaf.fingerprint for label, leaf in self.read_state(module).items()}

    def _iter_roots(self, module: nn.Module) -> Iterator[tuple[str, Any, Callable[[Any], Any] | None]]:
        for path, child in module.named_modules():
            for name, value in list(vars(child).items()):
                if name not in _INTERNALS and (self.has_libraries or not _is_of_library(type(child))):
                    label = f"attribute {f'{path}.{name}' if path else name!r}"
                    yield label, value, functools.partial(setattr, child, name)
            for own, tensor in (*child.named_parameters(recurse=False), *child.named_buffers(recurse=False)):
                for name, value in list(vars(tensor).items()):
                    label = f"attribute {name!r} of {f'{path}.{own}' if path else own!r}"
                    yield label, value, functools.partial(setattr, tensor, name)
            for hooks in (child._forward_hooks, child._forward_pre_hooks):
                for i, hook in enumerate(hooks.values()):
                    owner = getattr(hook, "__self__", None)
                    if owner is not None and not isinstance(owner, nn.Module):
                        yield f"hook {i} of {path or 'the model'}", owner, None
        mro = (cls for child in module.modules() for cls in type(child).__mro__)
        classes = {cls: None for cls in mro if is_user_file(get_class_file(cls))}
        for code, namespace in list(self.codes.items()):
            for name in code.co_names:
                value = namespace.get(name)
                if name in namespace and not _is_code(value) and not isinstance(value, types.ModuleType):
                    yield f"global {name!r}", value, functools.partial(namespace.__setitem__, name)
                elif isinstance(value, types.ModuleType) and is_user_file(
                    getattr(value, "__file__", None) or "<frozen"
                ):
                    for part in code.co_names:
                        member = vars(value).get(part)
                        if part in vars(value) and not _is_code(member) and not isinstance(member, types.ModuleType):
                            yield f"{name}.{part}", member, functools.partial(setattr, value, part)
                elif isinstance(value, type) and is_user_file(get_class_file(value)):
                    classes[value] = None
                elif isinstance(value, functools._lru_cache_wrapper):
                    yield f"cache of {name!r}", value, None
        for cls in classes:
            for name, value in list(vars(cls).items()):
                if not name.startswith("__") and not _is_code(value):
                    yield f"class attribute {cls.__name__}.{name}", value, functools.partial(setattr, cls, name)
        name_counts: collections.Counter[str] = collections.Counter()
        for function in self._find_functions():
            # One code object may belong to several functions, each with its own closure.
            name = function.__qualname__
            name_counts[name] += 1
            unique_name = name if name_counts[name] == 1 else f"{name} ({name_counts[name]})"
            yield from _iter_function_state(function, unique_name)

    def _find_functions(self) -> list[types.FunctionType]:
        """Return the functions that were made of the code that ran: memory is searched when there is new code.

        It is searched for what refers to the code's globals, as functions do: each reference of each object is compared
        with all that is searched for, and modules are few. A part of a footprint searches as the whole does, once."""
        if self._whole is not None:
            return [f for f in self._whole._find_functions() if f.__code__ in self.codes]
        if self._searched_counts != (counts := (len(self.codes), len(self._namespaces))):
            self._searched_counts = counts
            referrers = gc.get_referrers(*self._namespaces.values()) if self._namespaces else []
            functions = (f for f in referrers if isinstance(f, types.FunctionType))
            self._function_cache = [f for f in functions if f.__code__ in self.codes]
        return self._function_cache


def _iter_function_state(
    function: types.FunctionType, name: str
) -> Iterator[tuple[str, Any, Callable[[Any], Any] | None]]:
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


@functools.cache
def parse_file(file: str) -> ast.Module:
    """Return the syntax tree of a file; an empty one where it cannot be read."""
    try:
        return ast.parse(Path(file).read_text())
    except (OSError, SyntaxError, ValueError):
        return ast.Module([], [])


def get_class_file(cls: type) -> str:
    """Return the file that defines a class, or ``<frozen`` where there is none."""
    return getattr(sys.modules.get(cls.__module__), "__file__", None) or "<frozen"


def _is_of_library(cls: type) -> bool:
    file = get_class_file(cls)
    return not is_user_file(file) or "site-packages" in file


_SEQUENCES: tuple[Any, ...] = (list, tuple, set, frozenset, collections.deque)


_LIBRARY_CONTAINERS: tuple[Any, ...] = (
    array.array, collections.UserDict, collections.UserList, weakref.WeakKeyDictionary, functools.partial,
)  # fmt: skip


def _is_code(value: Any) -> bool:
    return isinstance(value, (*_PYTHON_CODE, type, torch.jit.ScriptFunction, functools._lru_cache_wrapper))


def iter_leaves(
    label: str, value: Any, put: Callable[[Any], Any] | None, depth: int, visited: set[int]
) -> Iterator[tuple[str, Leaf]]:
    """Yield the leaves of a value by label; ``put`` sets the value, and of what is in ``visited`` nothing is told."""
    if isinstance(value, torch.Tensor):
        content = value.detach()
        text = f"{content.dtype} {list(content.shape)} {count_writes(value)}"
        plain = content.layout == torch.strided and content.device.type == "cpu"
        # A small tensor may be a count; a field is none.
        small = plain and 0 < content.numel() <= SMALL
        yield label, Leaf(text + (digest(content) if plain else ""), content.clone() if small else None, content.copy_)
    elif isinstance(value, (bool, int, float, complex, str, bytes, type(None))):
        yield label, Leaf(repr(value), value, put)
    elif id(value) in visited or depth == 0:
        yield label, Leaf(f"{type(value).__name__} {id(value)}")
    elif isinstance(value, nn.Module):
        # A module that is registered nowhere: in a list, for example.
        visited.add(id(value))
        content = {k: v for k, v in vars(value).items() if k not in _INTERNALS}
        for key, part in {**value._parameters, **value._buffers, **value._modules, **content}.items():
            yield from iter_leaves(f"{label}.{key}", part, functools.partial(setattr, value, key), depth - 1, visited)
    elif isinstance(value, torch.Generator):
        yield label, Leaf(digest(value.get_state()))
    elif isinstance(value, random.Random):
        yield label, Leaf(str(hash(value.getstate())))
    elif isinstance(value, functools._lru_cache_wrapper):
        yield label, Leaf(str(value.cache_info().currsize))
    elif isinstance(value, types.GeneratorType):
        yield label, Leaf(f"{value.gi_frame and value.gi_frame.f_lasti}", value, _advance)
    elif isinstance(value, dict):
        visited.add(id(value))
        kind: Any = collections.OrderedDict if isinstance(value, collections.OrderedDict) else dict
        items = list(kind.items(value))
        text = f"{type(value).__name__} of {len(items)}: {[str(key) for key, _ in items[:50]]}"
        yield label, Leaf(text, kind(items), functools.partial(_refill, value))
        for key, part in items[:200]:
            setter = functools.partial(value.__setitem__, key)
            yield from iter_leaves(f"{label}[{key!r}]", part, setter, depth - 1, visited)
    elif isinstance(value, _SEQUENCES):
        yield from _iter_sequence(label, value, depth, visited)
    elif isinstance(value, type):
        return
    elif hasattr(value, "__array__") and hasattr(value, "tobytes"):
        small = 0 < getattr(value, "size", 0) <= SMALL and getattr(value, "ndim", 0) > 0
        text = f"{getattr(value, 'shape', '')} {hash(value.tobytes())}"
        yield label, Leaf(text, value.copy() if small else None, functools.partial(value.__setitem__, ...))
    elif isinstance(value, (threading.local, types.SimpleNamespace)) or is_user_file(get_class_file(type(value))):
        visited.add(id(value))
        slots = (name for cls in type(value).__mro__ for name in _list_slots(cls) if hasattr(value, name))
        content = {**getattr(value, "__dict__", {}), **{name: getattr(value, name) for name in slots}}
        for key, part in list(content.items())[:200]:
            setter = functools.partial(setattr, value, key)
            yield from iter_leaves(f"{label}.{key}", part, setter, depth - 1, visited)
    elif isinstance(value, _LIBRARY_CONTAINERS):
        yield from _iter_library_container(label, value, depth, visited)
    elif type(value).__module__ == "itertools":
        yield label, Leaf(repr(value), value if isinstance(value, itertools.count) else None, _advance)
    else:
        yield label, Leaf(f"{type(value).__name__} {id(value)}")


def _iter_sequence(label: str, value: Any, depth: int, visited: set[int]) -> Iterator[tuple[str, Leaf]]:
    visited.add(id(value))
    # A class of the user's may have no length, or another way through its parts.
    kind = next(kind for kind in _SEQUENCES if isinstance(value, kind))
    parts = list(kind.__iter__(value))
    grows = kind not in (tuple, frozenset)
    refill = functools.partial(_refill, value) if grows else None
    yield label, Leaf(f"{type(value).__name__} of {len(parts)}", kind(parts) if grows else None, refill)
    for i, part in enumerate(parts[:200]):
        setter = functools.partial(value.__setitem__, i) if kind is list else None
        yield from iter_leaves(f"{label}[{i}]", part, setter, depth - 1, visited)


def _iter_library_container(label: str, value: Any, depth: int, visited: set[int]) -> Iterator[tuple[str, Leaf]]:
    visited.add(id(value))
    if isinstance(value, array.array):
        for i, part in enumerate(value[:200]):
            yield f"{label}[{i}]", Leaf(repr(part), part, functools.partial(value.__setitem__, i))
    elif isinstance(value, functools.partial):
        for i, part in enumerate((*value.args, *value.keywords.values())):
            yield from iter_leaves(f"{label} argument {i}", part, None, depth - 1, visited)
    elif isinstance(value, weakref.WeakKeyDictionary):
        # How its keys are shown differs from run to run.
        for i, (key, part) in enumerate(list(value.items())[:200]):
            setter = functools.partial(value.__setitem__, key)
            yield from iter_leaves(f"{label}[{i}]", part, setter, depth - 1, visited)
    else:
        yield from iter_leaves(label, getattr(value, "data", None), None, depth, visited)


def _list_slots(cls: type) -> tuple[str, ...]:
    names = vars(cls).get("__slots__", ())
    return (names,) if isinstance(names, str) else tuple(names)


def _refill(container: Any, content: Any) -> None:
    """Put new content into the same list, dict, set or deque that the model holds."""
    container.clear()
    (container.extend if isinstance(container, (list, collections.deque)) else container.update)(content)


def _advance(steps: Any) -> None:
    """Advance an iterator: ``steps`` is the iterator itself."""
    for _ in range(FAR):
        next(steps, None)


def make_other_values(value: Any) -> list[Any]:
    """Return other values of the same type, for state that changes: later counts, longer lists."""
    if hasattr(value, "tobytes") and hasattr(value, "dtype") and value.dtype.kind in "iuf":
        return [value + 1, value + FAR]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, value + FAR, 2 * value + 7]
    if isinstance(value, float):
        return [3 * value + 1, 0.5 * value]
    if isinstance(value, str):
        return [value + "?"]
    if isinstance(value, torch.Tensor) and value.dtype != torch.bool:
        return [value + 1, value + FAR]
    if isinstance(value, (types.GeneratorType, itertools.count)):
        return [value]
    if isinstance(value, dict) and value:
        last = next(reversed(value.values()))
        return [value | {("far", i): last for i in range(FAR)}]
    if isinstance(value, set):
        return [value | set(range(10**6, 10**6 + FAR))]
    if isinstance(value, (collections.deque, list)) and value:
        return [[*value, *(copy.copy(value[-1]) for _ in range(FAR))]]
    return []


def find_suspect_line(run: Callable[[], Any], pattern: str) -> str:
    """Return ``file:line`` of the first line of the code that ran with a call of this type; else empty."""
    with Footprint() as footprint:
        run()
    return find_matching_line(footprint.codes, pattern)


def find_matching_line(codes: Iterable[types.CodeType], pattern: str) -> str:
    """Return ``file:line`` of the first line of this code that matches, comments aside; else empty."""
    for code in codes:
        for line in sorted({n for _, _, n in code.co_lines() if n}):
            if re.search(pattern, linecache.getline(code.co_filename, line).split("#")[0]):
                return f"{code.co_filename}:{line}"
    return ""

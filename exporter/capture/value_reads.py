"""Recording of tensor values and sizes that Python reads: a trace would freeze them.

``bool()``, ``int()``, ``item()`` and similar methods hand a value to Python, and a trace keeps the value instead of the
computation. While tracing, sizes are traced tensors too, so that both sorts of read are recorded, with file and line,
with the traced value that was read, and, on request, with another value handed to Python in its place."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar
from unittest import mock

import torch

from exporter.common.torch_hooks import FunctionHook, pause_tracing
from exporter.common.torch_internals import TracerWarning, get_tracing_state, get_value_trace
from exporter.common.user_code import user_source_location

_T = torch.Tensor
# Methods by which Python gets a value. They are patched while a recorder is active, because a torch function mode
# does not see what torch's own Python code does inside a function that the mode has intercepted.
_DATA_METHODS = {
    "__bool__": "bool()", "__int__": "int()", "__float__": "float()", "__complex__": "complex()",
    "__index__": "an index or range()", "item": ".item()", "tolist": ".tolist()", "numpy": ".numpy()",
    "__array__": "numpy", "__contains__": "in", "__repr__": "printing", "__format__": "printing",
    "__dlpack__": "dlpack",
}  # fmt: skip
_SIZE_METHODS = {"__len__": "len()", "__iter__": "iteration"}
# Functions that return a Python value.
_DATA_FUNCTIONS = {
    torch.equal: "torch.equal", torch.allclose: "torch.allclose", torch.is_nonzero: "torch.is_nonzero",
    _T.equal: ".equal()", _T.allclose: ".allclose()", _T.is_nonzero: ".is_nonzero()",
}  # fmt: skip
# Functions whose number of returned tensors depends on a size.
_SPLIT_FUNCTIONS = {
    torch.unbind, _T.unbind, torch.split, _T.split, torch.chunk, _T.chunk, torch.tensor_split, _T.tensor_split,
}  # fmt: skip
# What torch has under these names; ``torch.from_numpy`` is seen by no function mode.
_CONSTANT_FACTORIES = {name: getattr(torch, name) for name in ("tensor", "as_tensor", "asarray", "from_numpy")}

# Computes the value that a recorder hands to Python instead of the value that was read.
Change = Callable[[Any], Any]


@dataclass(frozen=True)
class ValueRead:
    """A value that Python read; with ``size`` it is a number of pieces, a dimension of the tensor and not its data."""

    kind: str
    where: str
    value: str
    size: bool = False


_Recorder = TypeVar("_Recorder", bound="ValueReadRecorder")


class ValueReadRecorder:
    """A context manager that records reads in order (``reads``) and the tensors of each (``values``).

    ``changes`` maps the index of a read to a function of its value; Python gets the result instead. Tensors that
    constants are made of are read while something is traced, or always (``has_constants``)."""

    def __init__(self, changes: Mapping[int, Change] | None = None, *, has_constants: bool = False) -> None:
        self.reads: list[ValueRead] = []
        self.values: list[tuple[torch.Tensor, ...]] = []
        self._changes = changes or {}
        self._exit = contextlib.ExitStack()
        self._is_reading = False
        self.has_constants = has_constants

    def __enter__(self: _Recorder) -> _Recorder:
        for name, label in _DATA_METHODS.items():
            self._exit.enter_context(_patch_method(name, self._make_recorder(getattr(_T, name), label, size=False)))
        for name, label in _SIZE_METHODS.items():
            self._exit.enter_context(_patch_method(name, self._make_recorder(getattr(_T, name), label, size=True)))
        self._exit.enter_context(fresh_constants())
        self._exit.enter_context(_FunctionReadMode(self))
        return self

    def __exit__(self, *error: object) -> None:
        self._exit.close()

    @property
    def is_reading(self) -> bool:
        """Return whether a read is under way, which torch's own calls are part of."""
        return self._is_reading

    @contextlib.contextmanager
    def mark_reading(self) -> Iterator[None]:
        """Mark a read as under way, and silence the tracer's warnings."""
        self._is_reading = True
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", TracerWarning)
                yield
        finally:
            self._is_reading = False

    def note(self, label: str, value: Any, tensors: Iterable[torch.Tensor], *, size: bool = False) -> Any:
        """Record a read; return the value to hand to Python."""
        index = len(self.reads)
        tracing = get_tracing_state()
        scalar = value if isinstance(value, (bool, int, float, complex)) else ""
        self.reads.append(ValueRead(label, user_source_location(), str(scalar), size))
        with self.mark_reading():
            # An alias has its own node in the graph, which returning it keeps alive.
            self.values.append(tuple(torch.ops.aten.alias(t) for t in tensors) if tracing else ())
            return self._changes[index](value) if index in self._changes else value

    def _make_recorder(self, original: Callable[..., Any], label: str, *, size: bool) -> Callable[..., Any]:
        def method(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            # torch passes a method on to the function mode, which calls this function again
            if self._is_reading:
                return original(tensor, *args, **kwargs)
            tracing = get_tracing_state()
            with self.mark_reading():
                value = original(tensor, *args, **kwargs)
            if size and not tracing:
                return value
            if not size:
                return self.note(label, value, (tensor,))
            pieces = list(value) if label == "iteration" else value
            with pause_tracing(tracing):
                count = tensor.shape[0]
            replacement = self.note(label, count, (tensor,), size=True)
            if label == "iteration":
                assert isinstance(pieces, list)
                return iter(pieces[: max(replacement, 0)])
            return replacement

        return method


class _FunctionReadMode(FunctionHook):
    def __init__(self, recorder: ValueReadRecorder) -> None:
        super().__init__()
        self._recorder = recorder

    def intercept(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        recorder = self._recorder
        if recorder.is_reading:
            return func(*args, **kwargs)
        tracing = get_tracing_state()
        if func in _CONSTANT_FACTORIES.values():
            tensors = list(_iterate_tensors((args, kwargs)))
            if tensors and (tracing or recorder.has_constants):
                # They are constants to a trace, built from values that torch reads without a Python call.
                with recorder.mark_reading():
                    value = func(*args, **kwargs)
                    if tracing and is_traced(value):
                        return value
                return recorder.note(f"torch.{func.__name__}", value, tensors)
        if func in _DATA_FUNCTIONS:
            with recorder.mark_reading():
                value = func(*args, **kwargs)
            return recorder.note(_DATA_FUNCTIONS[func], value, _iterate_tensors((args, kwargs)))
        value = func(*args, **kwargs)
        if tracing and func in _SPLIT_FUNCTIONS:
            replacement = recorder.note(f"{func.__name__}()", len(value), _iterate_tensors((args, kwargs)), size=True)
            return value[: max(replacement, 0)] if replacement < len(value) else value
        return value


def is_traced(tensor: torch.Tensor) -> bool:
    """Return whether the tracer knows where a tensor came from; other tensors are constants to it."""
    try:
        value = get_value_trace(tensor)
        return value.node().kind() != "prim::Constant"
    except RuntimeError:
        return False


@contextlib.contextmanager
def see_through_data() -> Iterator[None]:
    """Make ``x.data`` an operation, which the tracer sees; to it, what torch returns comes from nowhere."""
    own: Any = _T.data
    with _patch_method("data", property(lambda tensor: tensor.detach(), own.__set__)):
        yield


@contextlib.contextmanager
def _patch_method(name: str, method: Callable[..., Any] | property) -> Iterator[None]:
    previous = _T.__dict__.get(name)
    setattr(_T, name, method)
    try:
        yield
    finally:
        if previous is None:
            delattr(_T, name)
        else:
            setattr(_T, name, previous)


@contextlib.contextmanager
def fresh_constants() -> Iterator[None]:
    """Make constants of plain numbers and arrays with tracing paused, and hand them out as copies.

    A trace keeps the tensor itself and not its value at that time: written in place, the constant would change.
    Function modes do not see ``torch.from_numpy``."""
    with contextlib.ExitStack() as stack:
        for name in _CONSTANT_FACTORIES:
            stack.enter_context(_patch_constant_factory(name))
        yield


@contextlib.contextmanager
def restore_constant_factories() -> Iterator[None]:
    """Undo ``fresh_constants`` within the block, for TorchScript, which compiles what it finds under these names."""
    with mock.patch.multiple(torch, **_CONSTANT_FACTORIES):
        yield


@contextlib.contextmanager
def _patch_constant_factory(name: str) -> Iterator[None]:
    original = getattr(torch, name)

    def function(*args: Any, **kwargs: Any) -> Any:
        tracing = get_tracing_state()
        if not tracing or any(True for _ in _iterate_tensors((args, kwargs))):
            return original(*args, **kwargs)
        with pause_tracing(tracing):
            value = original(*args, **kwargs)
        return value.clone()

    setattr(torch, name, function)
    try:
        yield
    finally:
        setattr(torch, name, original)


def _iterate_tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _iterate_tensors(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _iterate_tensors(part)

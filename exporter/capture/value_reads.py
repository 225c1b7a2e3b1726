"""Tensor values and sizes that Python reads: where a trace would freeze them.

``bool()``, ``int()``, ``item()`` and their kin hand a value to Python, and a trace keeps the value instead of the
computation. While tracing, sizes are traced tensors too, so that both kinds of read are seen, with file and line,
with the traced value that was read, and, where asked for, with another value handed to Python in its place.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.jit._trace import TracerWarning
from torch.overrides import TorchFunctionMode

from exporter.common.torch_hooks import tracing_paused
from exporter.common.user_code import user_line

_T = torch.Tensor
# Methods by which Python gets a value. They are replaced while a recorder is active, because a torch function mode
# does not see what torch's own Python code does inside a function that the mode was told of.
_DATA_METHODS = {
    "__bool__": "bool()",
    "__int__": "int()",
    "__float__": "float()",
    "__complex__": "complex()",
    "__index__": "an index or range()",
    "item": ".item()",
    "tolist": ".tolist()",
    "numpy": ".numpy()",
    "__array__": "numpy",
    "__contains__": "in",
    "__repr__": "printing",
    "__format__": "printing",
    "__dlpack__": "dlpack",
}
_SIZE_METHODS = {"__len__": "len()", "__iter__": "iteration"}
# Functions that return a Python value.
_DATA_FUNCTIONS = {
    torch.equal: "torch.equal",
    _T.equal: ".equal()",
    torch.allclose: "torch.allclose",
    _T.allclose: ".allclose()",
    torch.is_nonzero: "torch.is_nonzero",
    _T.is_nonzero: ".is_nonzero()",
}
# Functions that return as many tensors as a size says.
_PIECES = {torch.unbind, _T.unbind, torch.split, _T.split, torch.chunk, _T.chunk, torch.tensor_split, _T.tensor_split}
_CONSTANTS = {torch.tensor, torch.as_tensor, torch.asarray}

# What a recorder hands to Python instead of the value that was read.
Change = Callable[[Any], Any]


@dataclass(frozen=True)
class Read:
    """``size``: what was read is a number of pieces, a dimension of the tensor and not its data."""

    kind: str
    where: str
    value: str
    size: bool = False


class ReadRecorder:
    """A context manager; ``reads`` are in the order in which they happened, ``values`` the tensors of each.

    ``changes``: by the position of a read, what Python is given instead.
    """

    def __init__(self, changes: Mapping[int, Change] | None = None) -> None:
        self.reads: list[Read] = []
        self.values: list[tuple[torch.Tensor, ...]] = []
        self._changes = changes or {}
        self._exit = contextlib.ExitStack()
        self._inside = False

    def __enter__(self) -> ReadRecorder:
        for name, kind in _DATA_METHODS.items():
            self._exit.enter_context(_replaced(name, self._recording(getattr(_T, name), kind, size=False)))
        for name, kind in _SIZE_METHODS.items():
            self._exit.enter_context(_replaced(name, self._recording(getattr(_T, name), kind, size=True)))
        self._exit.enter_context(fresh_constants())
        self._exit.enter_context(_Functions(self))
        return self

    def __exit__(self, *error: object) -> None:
        self._exit.close()

    @property
    def inside(self) -> bool:
        """Whether a read is under way, of which torch's own calls are part."""
        return self._inside

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        self._inside = True
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", TracerWarning)
                yield
        finally:
            self._inside = False

    def note(self, kind: str, value: Any, tensors: Iterable[torch.Tensor], *, size: bool = False) -> Any:
        """Record a read; what Python is to be given."""
        at = len(self.reads)
        tracing = torch._C._get_tracing_state()
        shown = value if isinstance(value, (bool, int, float, complex)) else ""
        self.reads.append(Read(kind, user_line(), str(shown), size))
        with self.reading():
            # An alias has a place in the graph of its own, which is kept by being returned.
            self.values.append(tuple(torch.ops.aten.alias(t) for t in tensors) if tracing else ())
            return self._changes[at](value) if at in self._changes else value

    def _recording(self, original: Callable[..., Any], kind: str, *, size: bool) -> Callable[..., Any]:
        def method(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            # torch hands a method on to the function mode, which comes back here
            if self._inside:
                return original(tensor, *args, **kwargs)
            tracing = torch._C._get_tracing_state()
            with self.reading():
                value = original(tensor, *args, **kwargs)
            if size and not tracing:
                return value
            if not size:
                return self.note(kind, value, (tensor,))
            pieces = list(value) if kind == "iteration" else value
            with tracing_paused(tracing):
                count = tensor.shape[0]
            given = self.note(kind, count, (tensor,), size=True)
            if kind == "iteration":
                assert isinstance(pieces, list)
                return iter(pieces[: max(given, 0)])
            return given

        return method


class _Functions(TorchFunctionMode):
    def __init__(self, recorder: ReadRecorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        recorder = self._recorder
        if recorder.inside:
            return func(*args, **kwargs)
        tracing = torch._C._get_tracing_state()
        if func in _CONSTANTS:
            tensors = list(_tensors((args, kwargs)))
            if tracing and tensors:
                # Constants to a trace, and built of values that torch reads behind Python's back.
                with recorder.reading():
                    value = func(*args, **kwargs)
                    if is_traced(value):
                        return value
                return recorder.note(f"torch.{func.__name__}", value, tensors)
        if func in _DATA_FUNCTIONS:
            with recorder.reading():
                value = func(*args, **kwargs)
            return recorder.note(_DATA_FUNCTIONS[func], value, _tensors((args, kwargs)))
        value = func(*args, **kwargs)
        if tracing and func in _PIECES:
            given = recorder.note(f"{func.__name__}()", len(value), _tensors((args, kwargs)), size=True)
            return value[: max(given, 0)] if given < len(value) else value
        return value


def is_traced(tensor: torch.Tensor) -> bool:
    """Whether the tracer knows where a tensor came from; others are constants to it."""
    try:
        value = torch._C._get_value_trace(tensor)  # pyright: ignore[reportAttributeAccessIssue]
        return value.node().kind() != "prim::Constant"
    except RuntimeError:
        return False


@contextlib.contextmanager
def _replaced(name: str, method: Callable[..., Any]) -> Iterator[None]:
    own = _T.__dict__.get(name)
    setattr(_T, name, method)
    try:
        yield
    finally:
        if own is None:
            delattr(_T, name)
        else:
            setattr(_T, name, own)


@contextlib.contextmanager
def fresh_constants() -> Iterator[None]:
    """Constants of plain numbers and arrays are made with tracing paused, and handed out as copies.

    A trace keeps the tensor that was made, and not what it held then: written in place, it would be found changed.
    Function modes are not told of ``torch.from_numpy``.
    """
    with contextlib.ExitStack() as stack:
        for name in ("tensor", "as_tensor", "asarray", "from_numpy"):
            stack.enter_context(_replaced_function(name))
        yield


@contextlib.contextmanager
def _replaced_function(name: str) -> Iterator[None]:
    original = getattr(torch, name)

    def function(*args: Any, **kwargs: Any) -> Any:
        tracing = torch._C._get_tracing_state()
        if not tracing or any(True for _ in _tensors((args, kwargs))):
            return original(*args, **kwargs)
        with tracing_paused(tracing):
            value = original(*args, **kwargs)
        return value.clone()

    setattr(torch, name, function)
    try:
        yield
    finally:
        setattr(torch, name, original)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _tensors(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _tensors(part)

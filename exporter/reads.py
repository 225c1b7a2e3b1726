"""Tensor values and sizes that Python reads: where a trace would freeze them.

``bool()``, ``int()``, ``item()`` and their kin hand a value to Python, and a trace keeps the value instead of the
computation. In eager mode such a read is always one of data, since sizes are plain integers there. While tracing,
sizes are traced tensors too; a read of a size is sound where it gives the same value at every batch size.
``ReadRecorder`` sees both, with file and line.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.jit._trace import TracerWarning
from torch.overrides import TorchFunctionMode

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
# Paths of code that no user can mend: torch's and ours, and the one that shows warnings.
NOT_THE_USERS = (str(Path(torch.__file__).parent), str(Path(__file__).parent), str(warnings.__file__), "<")


@dataclass(frozen=True)
class Read:
    kind: str
    where: str
    value: str


def user_line() -> str:
    """``file:line`` of the innermost frame that is neither torch's nor torchferry's; empty where there is none."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(NOT_THE_USERS):
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


class ReadRecorder:
    """A context manager; ``reads`` are in the order in which they happened.

    While tracing it also makes constants of plain numbers with tracing paused: ``torch.tensor(2.0)`` inside
    ``forward`` draws a ``TracerWarning`` although its value cannot come from a tensor, since a number that did
    would have been read first, and that read is recorded. With a tensor among its arguments it warns.
    """

    def __init__(self) -> None:
        self.reads: list[Read] = []
        self._exit = contextlib.ExitStack()
        self._inside = False

    def __enter__(self) -> ReadRecorder:
        for name, kind in _DATA_METHODS.items():
            self._exit.enter_context(_replaced(name, self._recording(getattr(_T, name), kind, size=False)))
        for name, kind in _SIZE_METHODS.items():
            self._exit.enter_context(_replaced(name, self._recording(getattr(_T, name), kind, size=True)))
        self._exit.enter_context(_replaced_function("from_numpy"))
        self._exit.enter_context(_Functions(self))
        return self

    def __exit__(self, *error: object) -> None:
        self._exit.close()

    @property
    def inside(self) -> bool:
        """Whether a read is under way, of which torch's own calls are part."""
        return self._inside

    def note(self, kind: str, value: object) -> None:
        shown = value if isinstance(value, (bool, int, float, complex)) else ""
        self.reads.append(Read(kind, user_line(), str(shown)))

    def _recording(self, original: Callable[..., Any], kind: str, *, size: bool) -> Callable[..., Any]:
        def method(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            # torch hands a method on to the function mode, which comes back here
            if self._inside:
                return original(tensor, *args, **kwargs)
            tracing = torch._C._get_tracing_state()
            self._inside = True
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", TracerWarning)
                    value = original(tensor, *args, **kwargs)
            finally:
                self._inside = False
            if size and tracing:
                with tracing_paused(tracing):
                    self.note(kind, tensor.shape[0])
            elif not size:
                self.note(kind, value)
            return value

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
        tracing = torch._C._get_tracing_state()
        if tracing and func in _CONSTANTS and not _has_tensor((args, kwargs)):
            with tracing_paused(tracing):
                return func(*args, **kwargs)
        value = func(*args, **kwargs)
        if func in _DATA_FUNCTIONS:
            self._recorder.note(_DATA_FUNCTIONS[func], value)
        elif tracing and func in _PIECES and not self._recorder.inside:
            self._recorder.note(f"{func.__name__}()", len(value))
        return value


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
def _replaced_function(name: str) -> Iterator[None]:
    """``torch.from_numpy``, of which function modes are not told, with tracing paused: an array is a constant."""
    original = getattr(torch, name)

    def function(*args: Any) -> Any:
        tracing = torch._C._get_tracing_state()
        with tracing_paused(tracing) if tracing else contextlib.nullcontext():
            return original(*args)

    setattr(torch, name, function)
    try:
        yield
    finally:
        setattr(torch, name, original)


def _has_tensor(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return True
    if isinstance(value, Mapping):
        return any(map(_has_tensor, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(_has_tensor, value))
    return False

"""Tensor values and sizes that Python reads: where a trace would freeze them.

``bool()``, ``int()``, ``float()``, ``item()`` and their kin hand a value to Python, and a trace keeps the value
instead of the computation. In eager mode such a read is always one of data, since sizes are plain integers
there. While tracing, sizes are traced tensors too; a read of a size is sound where it gives the same value at
every batch size. ``ReadRecorder`` sees both, with file and line.
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
# What a read is called in messages, and whether it reads data (or only a size) in eager mode.
_DATA_READS: dict[Any, str] = {
    _T.__bool__: "bool()",
    _T.__int__: "int()",
    _T.__float__: "float()",
    _T.__complex__: "complex()",
    _T.__index__: "an index or range()",
    _T.item: ".item()",
    _T.tolist: ".tolist()",
    _T.numpy: ".numpy()",
    _T.__array__: "numpy",
    _T.__contains__: "in",
}
_SIZE_READS: dict[Any, str] = {_T.__len__: "len()", _T.__iter__: "iteration"}
_CONSTANTS = (torch.tensor, torch.as_tensor)
_TORCH = str(Path(torch.__file__).parent)


@dataclass(frozen=True)
class Read:
    kind: str
    where: str
    value: str


def user_line() -> str:
    """``file:line`` of the innermost frame that is neither torch's nor this module's."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if name != __file__ and not name.startswith((_TORCH, "<")):
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return "unknown"


class ReadRecorder(TorchFunctionMode):
    """Records reads; while tracing also makes constants of plain Python numbers without a tracer's ``to``.

    ``torch.tensor(2.0)`` inside ``forward`` draws a ``TracerWarning`` although its value cannot come from a
    tensor: a number that did would have been read first, and that read is recorded here. Such a constant is
    therefore made with tracing paused. With a tensor among its arguments it is left alone, and warns.
    """

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[Read] = []

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        tracing = torch._C._get_tracing_state()
        kind = _DATA_READS.get(func) or (_SIZE_READS.get(func) if tracing else None)
        if kind is not None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", TracerWarning)
                value = func(*args, **kwargs)
            shown = value if isinstance(value, (bool, int, float, complex)) else ""
            if func in _SIZE_READS:
                with _tracing_paused(tracing):
                    shown = args[0].shape[0]
            self.reads.append(Read(kind, user_line(), str(shown)))
            return value
        if tracing and func in _CONSTANTS and not _has_tensor((args, kwargs)):
            with _tracing_paused(tracing):
                return func(*args, **kwargs)
        return func(*args, **kwargs)


@contextlib.contextmanager
def _tracing_paused(state: Any) -> Iterator[None]:
    # The stubs of torch._C do not know this function.
    set_tracing_state = getattr(torch._C, "_set_tracing_state")  # noqa: B009
    set_tracing_state(None)
    try:
        yield
    finally:
        set_tracing_state(state)


def _has_tensor(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return True
    if isinstance(value, Mapping):
        return any(map(_has_tensor, value.values()))
    # numpy arrays may share memory with a tensor; only plain numbers are known to be constants
    if isinstance(value, (list, tuple)):
        return any(map(_has_tensor, value))
    return not isinstance(value, (bool, int, float, complex, str, torch.dtype, torch.device, type(None)))

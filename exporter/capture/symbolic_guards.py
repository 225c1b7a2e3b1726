"""Guards: comparisons of symbolic sizes that Python code makes while a function is traced to a graph."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Any

import torch
from torch.fx.experimental.sym_node import SymNode

from exporter.capture.value_reads import ValueRead
from exporter.common.user_code import INTERNAL_PATH_PREFIXES

# The kind of a read: a comparison of a size, or a number computed from a size.
SIZE_COMPARISON = "a question about a size"


class SizeGuardRecorder:
    """A context manager that records what the user's own lines ask of symbolic sizes and get a number for.

    Such an answer holds for the traced sizes only, and is not in the graph."""

    def __init__(self) -> None:
        self.reads: list[ValueRead] = []
        self._exit = contextlib.ExitStack()

    def __enter__(self) -> SizeGuardRecorder:
        for name in ("guard_bool", "guard_int", "guard_float"):
            original = getattr(SymNode, name)

            def record_guard(node: Any, *args: Any, original: Any = original) -> Any:
                expression, value = str(node.expr), original(node, *args)
                where = _find_user_line()
                if where:
                    self.reads.append(ValueRead(SIZE_COMPARISON, where, f"{expression} is {value}", size=True))
                return value

            setattr(SymNode, name, record_guard)
            self._exit.callback(setattr, SymNode, name, original)
        return self

    def __exit__(self, *error: object) -> None:
        self._exit.close()


# Files of torch that pass a Python operation on to a symbol.
_SYMBOLIC = tuple(f"{Path(torch.__file__).parent}/{part}" for part in ("__init__.py", "fx/", "utils/"))


def _find_user_line() -> str:
    """Return the line that compared the size if it is the user's, else an empty string."""
    frame = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith((*_SYMBOLIC, __file__)):
        frame = frame.f_back
    if frame is None or frame.f_code.co_filename.startswith(INTERNAL_PATH_PREFIXES):
        return ""
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"

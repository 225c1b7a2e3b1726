"""What Python asks of sizes that are symbols, while a graph is made of a function."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Any

import torch
from torch.fx.experimental.sym_node import SymNode

from exporter.capture.value_reads import Read
from exporter.common.user_code import NOT_THE_USERS

# A comparison, or a number made of a size.
COMPARED = "a question about a size"


class Comparisons:
    """A context manager: what the user's own lines asked of sizes that are symbols, and were answered with a number.

    Such an answer holds for the sizes that were seen, and is not in the graph.
    """

    def __init__(self) -> None:
        self.reads: list[Read] = []
        self._exit = contextlib.ExitStack()

    def __enter__(self) -> Comparisons:
        for name in ("guard_bool", "guard_int", "guard_float"):
            original = getattr(SymNode, name)

            def noted(node: Any, *args: Any, original: Any = original) -> Any:
                expression, value = str(node.expr), original(node, *args)
                where = _asking_line()
                if where:
                    self.reads.append(Read(COMPARED, where, f"{expression} is {value}", size=True))
                return value

            setattr(SymNode, name, noted)
            self._exit.callback(setattr, SymNode, name, original)
        return self

    def __exit__(self, *error: object) -> None:
        self._exit.close()


# What hands a question of Python's to a symbol.
_SYMBOLIC = tuple(f"{Path(torch.__file__).parent}/{part}" for part in ("__init__.py", "fx/", "utils/"))


def _asking_line() -> str:
    """The line that asked, where it is the user's."""
    frame = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith((*_SYMBOLIC, __file__)):
        frame = frame.f_back
    if frame is None or frame.f_code.co_filename.startswith(NOT_THE_USERS):
        return ""
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"

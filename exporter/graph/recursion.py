"""Functions over blocks within blocks, which may be some hundreds deep: a chain of elifs is one block in another."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from exporter.common.errors import ArchiveError

# Frames of Python; a block takes a few of them.
LIMIT = 10_000
P = ParamSpec("P")
R = TypeVar("R")


def deep(function: Callable[P, R]) -> Callable[P, R]:
    """Raises ``ArchiveError`` where that is not enough."""

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        before = sys.getrecursionlimit()
        sys.setrecursionlimit(max(before, LIMIT))
        try:
            return function(*args, **kwargs)
        except RecursionError:
            raise ArchiveError(
                "the graph has blocks within blocks that are too many to follow",
                got=f"more than {LIMIT} calls within each other",
                expected="branches and loops some hundreds deep at most",
            ) from None
        finally:
            sys.setrecursionlimit(before)

    return called

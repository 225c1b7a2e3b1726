"""Decorator for functions over blocks within blocks, some hundreds deep: a chain of elifs nests one per branch."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from exporter.common.errors import ArchiveError

# Python frames; each block takes a few of them.
LIMIT = 10_000
P = ParamSpec("P")
R = TypeVar("R")


def with_deep_recursion(function: Callable[P, R]) -> Callable[P, R]:
    """Run the function with a recursion limit of ``LIMIT``; raise ``ArchiveError`` if that is not enough."""

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        before = sys.getrecursionlimit()
        sys.setrecursionlimit(max(before, LIMIT))
        try:
            return function(*args, **kwargs)
        except RecursionError:
            what, got = "the graph has too many blocks within blocks", f"more than {LIMIT} nested calls"
            raise ArchiveError(what, got=got, expected="branches and loops some hundreds deep at most") from None
        finally:
            sys.setrecursionlimit(before)

    return wrapper

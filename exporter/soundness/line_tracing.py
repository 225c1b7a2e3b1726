"""Following the user's Python code while it runs."""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def followed(event: Callable[..., Any]) -> Iterator[None]:
    """``sys.settrace`` for a while, here and in threads that are started meanwhile."""
    tracer, of_threads = sys.gettrace(), threading.gettrace()
    with undisturbed():
        threading.settrace(event)
        sys.settrace(event)
        try:
            yield
        finally:
            sys.settrace(tracer)
            threading.settrace(of_threads)  # pyright: ignore[reportArgumentType]


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Garbage is left alone: what a collection calls is not part of the run, and when it comes is chance."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()

"""Tracing of the user's Python code while it runs."""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def trace_user_lines(event: Callable[..., Any]) -> Iterator[None]:
    """Set ``sys.settrace`` for a while, here and in threads that are started meanwhile."""
    tracer, thread_tracer = sys.gettrace(), threading.gettrace()
    with pause_gc():
        threading.settrace(event)
        sys.settrace(event)
        try:
            yield
        finally:
            sys.settrace(tracer)
            threading.settrace(thread_tracer)  # pyright: ignore[reportArgumentType]


@contextlib.contextmanager
def pause_gc() -> Iterator[None]:
    """Turn the garbage collector off: the calls of a collection are not part of the run, and its time is arbitrary."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()

"""Tracing of the user's Python code while it runs."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from exporter.common.garbage_collection import pause_gc


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

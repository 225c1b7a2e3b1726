"""Search for the user's line that changes a value, by watching it after every line."""

from __future__ import annotations

import operator
import types
from collections.abc import Callable
from typing import Any

from exporter.soundness.footprint import runs_user_code
from exporter.soundness.line_tracing import trace_user_lines


def find_culprit_line(
    run: Callable[[], Any], value: Callable[[], Any], changed: Callable[[Any, Any], bool] = operator.ne
) -> str:
    """Return ``file:line`` of the user's first line during ``run`` after which ``value()`` has changed."""
    before, culprit = value(), ""
    last: dict[types.FrameType, str] = {}

    def trace_event(frame: types.FrameType, kind: str, arg: Any) -> Any:
        nonlocal culprit, before
        if culprit or not runs_user_code(frame):
            return None
        if kind in ("line", "return") and frame in last:
            current = value()
            if changed(before, current):
                culprit = last[frame]
                return None
            before = current
        last[frame] = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        return trace_event

    with trace_user_lines(trace_event):
        run()
    return culprit

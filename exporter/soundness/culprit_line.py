"""Which line of the user's does it: found by watching a value after every line."""

from __future__ import annotations

import operator
import types
from collections.abc import Callable
from typing import Any

from exporter.soundness.footprint import runs_users
from exporter.soundness.line_tracing import followed


def line_that(
    run: Callable[[], Any], value: Callable[[], Any], changed: Callable[[Any, Any], bool] = operator.ne
) -> str:
    """``file:line`` of the first line of the user's during ``run`` after which ``value()`` has changed."""
    before, found = value(), ""
    last: dict[types.FrameType, str] = {}

    def event(frame: types.FrameType, kind: str, arg: Any) -> Any:
        nonlocal found, before
        if found or not runs_users(frame):
            return None
        if kind in ("line", "return") and frame in last:
            now = value()
            if changed(before, now):
                found = last[frame]
                return None
            before = now
        last[frame] = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        return event

    with followed(event):
        run()
    return found

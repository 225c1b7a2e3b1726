"""Hooks of a backward pass that do more than give another gradient: the file would not do it.

What a hook computes is captured; what it appends to a list, keeps in a dict, counts or prints is not.
"""

from __future__ import annotations

import io
import sys
import types
from collections.abc import Callable
from typing import Any

from exporter.archive.contract import Finding
from exporter.common.autograd_engine import Entry, engine_entered_by
from exporter.model.eager.evaluation import inference_conditions
from exporter.model.source import Inputs, Source
from exporter.soundness.check_context import Eager, eager
from exporter.soundness.checks.hidden_state import state_changed
from exporter.soundness.footprint import Footprint, runs_users
from exporter.soundness.line_tracing import followed

CHECK = "hook"
# Calls of hooks that are looked at.
CALLS = 30


def check(eager_mode: Eager) -> list[Finding]:
    if not eager_mode.source.differentiates:
        return []
    return eager_mode.room(_check, eager_mode.inputs, eager_mode.other)


def _check(source: Source, inputs: Inputs, other: Inputs) -> list[Finding]:
    with inference_conditions(source):
        with Footprint() as footprint:
            # Twice: what only comes into being with the first call is there before the one that is watched.
            for _ in range(2):
                eager(source, inputs)

        def state() -> dict[str, str]:
            return {label: leaf.fingerprint for label, leaf in footprint.state(source.named).items()}

        # Closures that a call makes for itself are not found any more.
        state()
        watch = _Watch(state)
        # At other inputs: a gradient that is kept is another one then.
        with engine_entered_by(watch.entry), followed(watch.event):
            eager(source, other)
    return watch.findings


class _Watch:
    """Looks at the state before and after each call that torch's engine makes into the user's code."""

    def __init__(self, state: Callable[[], dict[str, str]]) -> None:
        self.findings: list[Finding] = []
        self._state = state
        self._inside = False
        self._hook: types.FrameType | None = None
        self._before: dict[str, str] = {}
        self._printed, self._stdout = io.StringIO(), sys.stdout
        self._calls = 0

    def entry(self, original: Entry) -> Entry:
        def run(*args: Any, **kwargs: Any) -> Any:
            outer, self._inside = self._inside, True
            try:
                return original(*args, **kwargs)
            finally:
                self._inside = outer

        return run

    def event(self, frame: types.FrameType, kind: str, arg: Any) -> Any:
        if not self._inside or self._hook not in (None, frame) or not runs_users(frame):
            return None
        if self._hook is None and kind == "call" and self._calls < CALLS:
            self._hook, self._before = frame, self._state()
            self._calls += 1
            self._printed, self._stdout = io.StringIO(), sys.stdout
            sys.stdout = self._printed
        elif self._hook is frame and kind == "return":
            sys.stdout, self._hook = self._stdout, None
            self._judge(frame)
        return self.event

    def _judge(self, frame: types.FrameType) -> None:
        after = self._state()
        moved = [label for label, text in after.items() if state_changed(self._before, {label: text})]
        said = self._printed.getvalue().strip()
        code = frame.f_code
        if moved or said:
            self.findings.append(
                Finding(
                    CHECK,
                    f"hook {code.co_name!r} of the backward pass does more than give a gradient",
                    f"{code.co_filename}:{code.co_firstlineno}",
                    severity="unsound",
                    evidence="; ".join(
                        [f"it changes {', '.join(moved[:3])}"] * bool(moved) + [f"it prints {said[:60]!r}"] * bool(said)
                    ),
                    mend="let the hook return a gradient and nothing else; what it keeps, return from the function",
                )
            )

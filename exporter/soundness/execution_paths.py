"""The path of a run through the user's code, instruction by instruction, and the step where two runs diverge."""

from __future__ import annotations

import contextlib
import dis
import itertools
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from exporter.soundness.footprint import runs_user_code
from exporter.soundness.line_tracing import trace_user_lines

# Longer paths are compared up to here.
MAX_STEPS = 200_000


@dataclass(frozen=True)
class Step:
    """An instruction; at the first of a line also the plain values of its frame's variables, and the line before it."""

    code: types.CodeType
    instruction: int
    line: int
    plain: str = ""
    before: int = 0

    @property
    def where(self) -> str:
        """Return ``file:line``."""
        return f"{self.code.co_filename}:{self.line}"

    @property
    def is_branch(self) -> bool:
        """Return whether this is a conditional jump, and not the end of a loop."""
        return any("JUMP" in i.opname for i in dis.get_instructions(self.code) if i.offset == self.instruction)


def trace_path(run: Callable[[], Any], *, plain: bool = False) -> list[Step]:
    """Return every step of the user's code; errors that the run raises are ignored."""
    steps: list[Step] = []
    last: dict[types.FrameType, int] = {}

    def trace_event(frame: types.FrameType, kind: str, arg: Any) -> Any:
        if not runs_user_code(frame):
            return None
        frame.f_trace_opcodes = True
        if len(steps) >= MAX_STEPS:
            return None
        if kind == "opcode":
            steps.append(Step(frame.f_code, frame.f_lasti, frame.f_lineno))
        elif kind in ("line", "return") and plain:
            values = repr([(name, value) for name, value in frame.f_locals.items() if _is_plain(value)])
            steps.append(Step(frame.f_code, -1, frame.f_lineno, values, last.get(frame, 0)))
            last[frame] = frame.f_lineno
        return trace_event

    with trace_user_lines(trace_event), contextlib.suppress(Exception):
        run()
    return steps


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return len(value) < 50 and all(map(_is_plain, value))
    return isinstance(value, (bool, int, float, complex, str, type(None)))


def find_divergence(first: Callable[[], Any], second: Callable[[], Any]) -> Step | None:
    """Return the last step that two runs share; None where they took the same path."""
    last: Step | None = None
    for a, b in itertools.zip_longest(trace_path(first), trace_path(second)):
        if a != b:
            return last
        last = a
    return None


def raises_in_user_code(run: Callable[[], Any]) -> bool:
    """Return whether an exception is raised in the user's code, also one that is caught there."""
    raised = False

    def trace_event(frame: types.FrameType, kind: str, arg: Any) -> Any:
        nonlocal raised
        raised = raised or (kind == "exception" and runs_user_code(frame))
        return trace_event

    with trace_user_lines(trace_event), contextlib.suppress(Exception):
        run()
    return raised


def locate_path_divergence(first: Callable[[], Any], second: Callable[[], Any]) -> str:
    """Return ``file:line`` of the last step that two runs share; empty where they took the same path."""
    step = find_divergence(first, second)
    return step.where if step else ""


def locate_value_divergence(first: Callable[[], Any], second: Callable[[], Any]) -> str:
    """Return ``file:line`` after which a variable that is no tensor differs, or the paths diverge; else empty."""
    last: Step | None = None
    for a, b in zip(trace_path(first, plain=True), trace_path(second, plain=True), strict=False):
        if a.plain != b.plain and (a.code, a.line) == (b.code, b.line):
            return f"{a.code.co_filename}:{a.before or a.line}"
        if a != b:
            return last.where if last else ""
        last = a
    return ""

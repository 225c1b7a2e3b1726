"""The path of a run through the user's code, instruction by instruction, and the step where two runs diverge."""

from __future__ import annotations

import contextlib
import dis
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
    """An instruction.

    At the first of a line also the numbers and texts that its frame's variables hold, and the line that ran before it.
    """

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
        names = {i.offset: i.opname for i in dis.get_instructions(self.code)}
        return "JUMP" in names.get(self.instruction, "")


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
            steps.append(
                Step(frame.f_code, -1, frame.f_lineno, _format_plain_values(frame.f_locals), last.get(frame, 0))
            )
            last[frame] = frame.f_lineno
        return trace_event

    with trace_user_lines(trace_event), contextlib.suppress(Exception):
        run()
    return steps


def _format_plain_values(variables: dict[str, Any]) -> str:
    return repr([(name, value) for name, value in variables.items() if _is_plain(value)])


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return len(value) < 50 and all(map(_is_plain, value))
    return isinstance(value, (bool, int, float, complex, str, type(None)))


def find_divergence(first: Callable[[], Any], second: Callable[[], Any]) -> Step | None:
    """Return the last step that two runs share; None where they took the same path."""
    first_path, second_path = trace_path(first), trace_path(second)
    last: Step | None = None
    for a, b in zip(first_path, second_path, strict=False):
        if a != b:
            return last
        last = a
    return last if len(first_path) != len(second_path) else None


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

"""The path of a run through the user's code, instruction by instruction, and where two runs part."""

from __future__ import annotations

import contextlib
import dis
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from exporter.soundness.footprint import runs_users
from exporter.soundness.line_tracing import followed

# A longer path is compared up to here.
LONGEST = 200_000


@dataclass(frozen=True)
class Step:
    """An instruction; at the first of a line also the numbers and texts that its frame's variables hold, and the line
    that ran before it there."""

    code: types.CodeType
    instruction: int
    line: int
    plain: str = ""
    before: int = 0

    @property
    def where(self) -> str:
        return f"{self.code.co_filename}:{self.line}"

    @property
    def branches(self) -> bool:
        """Whether this is a conditional jump, and not the end of a loop."""
        names = {i.offset: i.opname for i in dis.get_instructions(self.code)}
        return "JUMP" in names.get(self.instruction, "")


def path_of(run: Callable[[], Any], *, plain: bool = False) -> list[Step]:
    """Every step of the user's code; what the run raises is its own affair."""
    steps: list[Step] = []
    last: dict[types.FrameType, int] = {}

    def event(frame: types.FrameType, kind: str, arg: Any) -> Any:
        if not runs_users(frame):
            return None
        frame.f_trace_opcodes = True
        if len(steps) >= LONGEST:
            return None
        if kind == "opcode":
            steps.append(Step(frame.f_code, frame.f_lasti, frame.f_lineno))
        elif kind in ("line", "return") and plain:
            steps.append(Step(frame.f_code, -1, frame.f_lineno, _plain(frame.f_locals), last.get(frame, 0)))
            last[frame] = frame.f_lineno
        return event

    with followed(event), contextlib.suppress(Exception):
        run()
    return steps


def _plain(variables: dict[str, Any]) -> str:
    return repr([(name, value) for name, value in variables.items() if _is_plain(value)])


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return len(value) < 50 and all(map(_is_plain, value))
    return isinstance(value, (bool, int, float, complex, str, type(None)))


def parting(first: Callable[[], Any], second: Callable[[], Any]) -> Step | None:
    """The last step that two runs share; None where they took the same path."""
    one, other = path_of(first), path_of(second)
    last: Step | None = None
    for a, b in zip(one, other, strict=False):
        if a != b:
            return last
        last = a
    return last if len(one) != len(other) else None


def raises_inside(run: Callable[[], Any]) -> bool:
    """Whether an exception is raised in the user's code, also one that is caught there."""
    raised = False

    def event(frame: types.FrameType, kind: str, arg: Any) -> Any:
        nonlocal raised
        raised = raised or (kind == "exception" and runs_users(frame))
        return event

    with followed(event), contextlib.suppress(Exception):
        run()
    return raised


def where_paths_part(first: Callable[[], Any], second: Callable[[], Any]) -> str:
    """``file:line`` of the last step that two runs share; empty where they took the same path."""
    step = parting(first, second)
    return step.where if step else ""


def where_plain_values_part(first: Callable[[], Any], second: Callable[[], Any]) -> str:
    """``file:line`` after which a variable that is no tensor differs, or the paths part; empty where neither does."""
    last: Step | None = None
    for a, b in zip(path_of(first, plain=True), path_of(second, plain=True), strict=False):
        if a.plain != b.plain and (a.code, a.line) == (b.code, b.line):
            return f"{a.code.co_filename}:{a.before or a.line}"
        if a != b:
            return last.where if last else ""
        last = a
    return ""

"""What a long command is doing: its stages in order, the parts of a stage, and the seconds of both."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Step:
    """What is going on.

    Attributes:
        stage: The stage of a command: ``"soundness"``.
        part: What has ended in it: the name of a check.
        done: How many parts have ended.
        total: How many there are; 0 for a stage without parts.
        is_notice: Whether it says what a reader should know now, not only what goes on.
    """

    stage: str
    part: str = ""
    done: int = 0
    total: int = 0
    is_notice: bool = False

    def __str__(self) -> str:
        count = f" ({self.done} of {self.total})" if self.total else ""
        return self.stage + count + (f": {self.part}" if self.part else "")


Watch = Callable[[Step], Any]


def ignore_step(step: Step) -> None:
    """Watch nothing."""


class Stopwatch:
    """A stopwatch that sums the seconds of each stage, ``with clock("load"): ...``, and tells ``watch`` of each step.

    ``seconds`` are those of stages, ``parts`` those of parts by ``(stage, part)``; parts may run side by side."""

    def __init__(self, watch: Watch = ignore_step) -> None:
        self._watch = watch
        self._stage = ""
        self.seconds: dict[str, float] = {}
        self.parts: dict[tuple[str, str], float] = {}

    @contextlib.contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        outer, self._stage = self._stage, stage
        self._watch(Step(stage))
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - start
            self._stage = outer

    def tell(self, notice: str) -> None:
        """Tell whoever watches something about the current stage."""
        self._watch(Step(self._stage, notice, is_notice=True))

    def report(self, stage: str, part: str, done: int, total: int, seconds: float) -> None:
        """Report that a part of a stage has ended, after so many seconds."""
        self.add_parts({(stage, part): seconds})
        self._watch(Step(stage, part, done, total))

    def pass_on(self, step: Step) -> None:
        """Tell whoever watches of a step of another stopwatch."""
        self._watch(step)

    def add_parts(self, parts: Mapping[tuple[str, str], float]) -> None:
        """Add the seconds of parts that another stopwatch has measured."""
        for key, seconds in parts.items():
            self.parts[key] = self.parts.get(key, 0.0) + seconds

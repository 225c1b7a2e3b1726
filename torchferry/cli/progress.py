"""What a long command is doing: a line that lives on a terminal, and plain lines elsewhere."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from exporter.common.stopwatch import Step
from torchferry.cli.output import err

# Where there is no terminal, nothing is said of what ends within so many seconds.
QUIET_SECONDS = 5.0


class StepDisplay:
    """Shows the steps of a command on standard error, which may be the terminal that results are printed to."""

    def __init__(self, *, is_silent: bool) -> None:
        self._is_silent = is_silent
        self._start = self._last = time.monotonic()
        columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
        self._live = Progress(
            *columns,
            console=err,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
            disable=is_silent or not err.is_terminal,
        )
        self._task = self._live.add_task("start", total=None)

    def show(self, step: Step) -> None:
        """Show a step; where there is no terminal, only if the last one that was shown is long ago. A notice stays."""
        now = time.monotonic()
        if step.is_notice:
            if not self._is_silent:
                err.print(step.part, soft_wrap=True)
        elif err.is_terminal:
            self._live.update(self._task, description=str(step))
        elif not self._is_silent and now - self._last > QUIET_SECONDS:
            self._last = now
            err.print(f"{now - self._start:.0f} s: {step}", soft_wrap=True)

    def start(self) -> None:
        """Show the line, if there is a terminal."""
        self._live.start()

    def stop(self) -> None:
        """Take the line away."""
        self._live.stop()

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Take the line away inside the context, for other output."""
        self.stop()
        yield
        self.start()


@contextlib.contextmanager
def show_steps(*, is_silent: bool = False) -> Iterator[StepDisplay]:
    """Show the steps of a command inside the context."""
    display = StepDisplay(is_silent=is_silent)
    display.start()
    try:
        yield display
    finally:
        display.stop()

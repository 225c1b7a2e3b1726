"""Whether a model takes gradients itself, which only a run can tell."""

from __future__ import annotations

import dataclasses
import traceback
from typing import Any

import torch

from exporter.capture import fx_tracing
from exporter.common.autograd_engine import Entry, engine_entered_by
from exporter.common.errors import TorchferryError
from exporter.common.forking import NotRun, isolated
from exporter.common.torch_hooks import called_instead
from exporter.model.eager.warmup import first_run
from exporter.model.implicit.newton_solver import Newton, loops
from exporter.model.source import Source


class _Asked(Exception):
    """The engine was asked for a backward pass."""


def as_it_runs(source: Source, seed: int) -> Source:
    """The source, marked where a call asks torch's engine for a backward pass. It runs in a process of its own."""
    if source.origin.kind != "python":
        # A source library has its own chain rule.
        return source
    try:
        asked = isolated(_asks, source, seed)
    except (NotRun, TorchferryError):
        # What fails here fails again where it is said.
        return source
    if asked:
        # What torch loads when a graph is first made is there before processes are forked from here.
        fx_tracing.captured(lambda x: torch.autograd.grad(x.requires_grad_().sin().sum(), x), (torch.ones(3),))
    return dataclasses.replace(source, differentiates=asked)


def _asks(source: Source, seed: int) -> bool:
    asked: list[bool] = []
    solving: list[bool] = []

    def instead(original: Entry) -> Entry:
        def entry(*args: Any, **kwargs: Any) -> Any:
            if solving:
                return original(*args, **kwargs)
            asked.append(True)
            raise _Asked

        return entry

    def solved(loop: Newton) -> Entry:
        forward = loop.forward

        def run(*args: Any) -> Any:
            # How the Jacobian of a residual is made is the solve's own affair.
            solving.append(True)
            result = forward(*args)
            solving.pop()
            return result

        return run

    within = called_instead({loop: solved(loop) for loop in loops(source.named).values()})
    with within, engine_entered_by(instead):
        try:
            first_run(dataclasses.replace(source, differentiates=True), seed)
        except Exception as error:
            return bool(asked) or (not solving and _failed_before(error))
    return bool(asked)


def _failed_before(error: BaseException | None) -> bool:
    """Whether it was raised by what asks for a backward pass, before the engine was reached."""
    while error is not None:
        frames = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
        if any(c.co_filename == torch.autograd.__file__ and c.co_name in ("grad", "backward") for c in frames):
            return True
        error = error.__cause__
    return False

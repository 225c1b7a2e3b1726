"""Inputs that a NEML2 driver feeds a model, recorded call by call."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from exporter.archive.contract import Finding
from exporter.common.errors import first_line

# One value a model input, as neml2's typed wrappers.
Call = tuple[Any, ...]
# The model that a driver drives, and what drives it.
Drive = tuple[nn.Module, Callable[[], Any]]

# A driven model is recorded over its whole history. A part of it is called at every Newton iteration, and a few
# calls are enough to know its inputs.
CALLS_OF_DRIVEN, CALLS_OF_PART = 2000, 20
SECONDS_OF_DRIVEN, SECONDS_OF_PART = 60.0, 3.0


class _Enough(Exception):
    """Ends a drive from within the model; never seen outside this module."""


class _Recorder:
    def __init__(self, limit: int, stop: float) -> None:
        self.calls: list[Call] = []
        self._limit, self._stop = limit, stop

    def look_at_the_clock(self, module: nn.Module, args: Call) -> None:
        if self.calls and time.monotonic() > self._stop:
            raise _Enough

    def note(self, module: nn.Module, args: Call) -> None:
        self.calls.append(tuple(_copy(value) for value in args))
        if len(self.calls) >= self._limit:
            raise _Enough
        self.look_at_the_clock(module, args)


def record(drives: Sequence[tuple[str, Callable[[], Drive]]], name: str) -> tuple[list[Call], tuple[Finding, ...]]:
    """Calls of the model ``name`` under each driver, and what cut a driver short.

    A driver that fails (in an implicit part, for one) is not this model's failure: its calls up to there count.
    """
    calls: list[Call] = []
    findings: list[Finding] = []
    for driver, prepare in drives:
        try:
            driven, run = prepare()
        except Exception as error:
            findings.append(_finding(driver, "it cannot be set up", first_line(error)))
            continue
        found = [m for m in driven.modules() if getattr(m, "_hit_name", None) == name]
        if not found:
            continue
        target = found[0]
        whole = target is driven
        recorder = _Recorder(
            CALLS_OF_DRIVEN if whole else CALLS_OF_PART,
            time.monotonic() + (SECONDS_OF_DRIVEN if whole else SECONDS_OF_PART),
        )
        hooks = [
            driven.register_forward_pre_hook(recorder.look_at_the_clock),
            target.register_forward_pre_hook(recorder.note),
        ]
        here = recorder.calls
        try:
            with torch.no_grad():
                for parameter in driven.parameters():
                    parameter.requires_grad_(False)
                run()
        except _Enough:
            if whole:
                findings.append(_finding(driver, f"recorded for {len(here)} calls", "the limit on calls or time"))
        except Exception as error:
            findings.append(_finding(driver, f"it stopped after {len(here)} calls", first_line(error)))
        finally:
            for hook in hooks:
                hook.remove()
        calls += here
    return calls, tuple(findings)


def _copy(value: Any) -> Any:
    return type(value)(value.data.detach().clone(), sub_batch_ndim=value.sub_batch_ndim)


def _finding(driver: str, what: str, reason: str) -> Finding:
    return Finding("history", f"driver {driver!r}: {what}", reason=reason)

"""Inputs that a NEML2 driver feeds a model, recorded call by call."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from exporter.archive.contract import Finding
from exporter.common.errors import SourceError, TorchferryError, summarize_error

# One value per model input, in neml2's typed wrappers.
Call = tuple[Any, ...]
# The model that a driver drives, and the function that drives it.
Drive = tuple[nn.Module, Callable[[], Any]]

# A driven model is recorded over its whole history. A part of it is called at every Newton iteration, and a few
# calls are enough to know its inputs.
CALLS_OF_DRIVEN, CALLS_OF_PART = 2000, 20
SECONDS_OF_DRIVEN, SECONDS_OF_PART = 30.0, 3.0


class _StopDrive(Exception):
    """An exception that ends a drive from within the model; it never leaves this module."""


class _Recorder:
    def __init__(self, limit: int, stop: float) -> None:
        self.calls: list[Call] = []
        self._limit, self._stop = limit, stop

    def check_time(self, module: nn.Module, args: Call) -> None:
        """Raise ``_StopDrive`` when the time is over."""
        if self.calls and time.monotonic() > self._stop:
            raise _StopDrive

    def record_call(self, module: nn.Module, args: Call) -> None:
        """Record one call; raise ``_StopDrive`` at the limit."""
        self.calls.append(tuple(_copy_value(value) for value in args))
        if len(self.calls) >= self._limit:
            raise _StopDrive
        self.check_time(module, args)


def record_driver_calls(
    drives: Sequence[tuple[str, Callable[[], Drive]]], name: str, where: str
) -> tuple[list[Call], tuple[Finding, ...]]:
    """Record calls of the model ``name`` under each driver, and what cut a driver short.

    A driver that fails (in an implicit part, for one) is not this model's failure: its calls up to there count. Raises
    ``SourceError`` for a driver that NEML2 cannot build, of the file ``where``: without its inputs others would be
    drawn, which may mean nothing."""
    calls: list[Call] = []
    findings: list[Finding] = []
    for driver, prepare in drives:
        try:
            driven_model, run = prepare()
        except TorchferryError as error:
            findings.append(_make_finding(driver, "it cannot be set up", summarize_error(error)))
            continue
        except Exception as error:
            what, mend = f"neml2 cannot build driver {driver!r}", "mend it, or give inputs of the model: --inputs FILE"
            raise SourceError(what, where=where, got=summarize_error(error), mend=mend) from error
        matches = [m for m in driven_model.modules() if getattr(m, "_hit_name", None) == name]
        if not matches:
            continue
        target = matches[0]
        is_driven = target is driven_model
        seconds = SECONDS_OF_DRIVEN if is_driven else SECONDS_OF_PART
        recorder = _Recorder(CALLS_OF_DRIVEN if is_driven else CALLS_OF_PART, time.monotonic() + seconds)
        hooks = [driven_model.register_forward_pre_hook(recorder.check_time)]
        hooks.append(target.register_forward_pre_hook(recorder.record_call))
        driver_calls = recorder.calls
        try:
            with torch.no_grad():
                for parameter in driven_model.parameters():
                    parameter.requires_grad_(False)
                run()
        except _StopDrive:
            if is_driven:
                what = f"recorded for {len(driver_calls)} calls"
                findings.append(_make_finding(driver, what, "the limit on calls or time"))
        except Exception as error:
            what = f"it stopped after {len(driver_calls)} calls"
            findings.append(_make_finding(driver, what, summarize_error(error)))
        finally:
            for hook in hooks:
                hook.remove()
        calls += driver_calls
    return calls, tuple(findings)


def _copy_value(value: Any) -> Any:
    return type(value)(value.data.detach().clone(), sub_batch_ndim=value.sub_batch_ndim)


def _make_finding(driver: str, what: str, reason: str) -> Finding:
    return Finding("history", f"driver {driver!r}: {what}", reason=reason)

"""Checks that run beside a capture, and beside what is done with it."""

from __future__ import annotations

import os
import select
import threading
import time

import planted_models
import pytest
import torch
from project import ROOT

import torchferry
from exporter.archive.contract import Finding
from exporter.capture.autograd_detection import detect_inner_autograd
from exporter.common.errors import UnsoundError, UsageError
from exporter.common.stopwatch import Step, Stopwatch
from exporter.frontends import python_factory
from exporter.soundness import checked_capture, gate
from exporter.soundness.checked_capture import CaptureOptions, capture_beside_checks

# Seconds that no capture of these models takes.
WAIT = 20.0


def fail(*_):
    raise RuntimeError("planted")


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_refusal_of_eager_mode_is_raised_in_place_of_an_error_of_the_capture(monkeypatch, jobs):
    monkeypatch.setattr(checked_capture, "capture", fail)
    with pytest.raises(UnsoundError, match="data"):
        torchferry.check(planted_models.branch_on_data(), jobs=jobs)
    with pytest.raises(RuntimeError, match="planted"):
        torchferry.check(planted_models.sound(), jobs=jobs)


def test_a_failure_of_the_first_calls_ends_an_export(monkeypatch):
    """They run beside the warmup."""
    monkeypatch.setattr(gate, "_observe_first_calls", fail)
    for jobs in (1, 2):
        with pytest.raises(RuntimeError, match="planted"):
            torchferry.check(planted_models.sound(), jobs=jobs)


def test_a_misspelt_derivative_is_said_before_loops_are_captured(monkeypatch):
    monkeypatch.setattr(checked_capture, "_capture_loops", fail)
    source = f"{ROOT}/examples/return_map.py:make_model"
    with pytest.raises(UsageError, match="no output matches 'stres'"):
        torchferry.export(source, output="unused.pt", derivatives="stres:strain")
    with pytest.raises(RuntimeError, match="planted"):
        torchferry.export(source, output="unused.pt", derivatives="stress:strain")


def enter(model, jobs: int):
    source = python_factory.source_from_module(model, "m", None, "the test")
    return capture_beside_checks(detect_inner_autograd(source, 0), CaptureOptions(jobs=jobs), Stopwatch())


def test_what_is_traced_is_the_first_draw_of_the_checks(monkeypatch):
    capture, check_after_capture, seen = checked_capture.capture, gate.check_after_capture, []

    def record_traced(warm, inputs, *arguments):
        seen.append(inputs)
        return capture(warm, inputs, *arguments)

    def record_draws(warm, captured, eager, *arguments):
        seen.append(eager.inputs)
        return check_after_capture(warm, captured, eager, *arguments)

    monkeypatch.setattr(checked_capture, "capture", record_traced)
    monkeypatch.setattr(gate, "check_after_capture", record_draws)
    torchferry.check(planted_models.sound(), jobs=1)
    traced, first = seen
    assert all(map(torch.equal, traced, first))


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_refusal_of_the_capture_is_raised_in_place_of_an_error_of_the_block(jobs):
    with pytest.raises(UnsoundError, match="batch"), enter(planted_models.loop_over_batch(), jobs):
        fail()
    with pytest.raises(RuntimeError, match="planted"), enter(planted_models.sound(), jobs):
        fail()


def test_the_block_runs_beside_the_checks_of_the_capture(monkeypatch):
    reader, writer = os.pipe()

    def hear_the_block(_) -> list[Finding]:
        heard, _, _ = select.select([reader], [], [], WAIT)
        return [] if heard else [Finding("dtype", "the block waits for the checks", severity="unsound")]

    monkeypatch.setitem(gate._AFTER, "dtype", hear_the_block)
    with enter(planted_models.sound(), 2) as (_, _, wait):
        os.write(writer, b"here")
        assert wait() == ()


def test_checks_that_nobody_waits_for_are_ended(monkeypatch):
    """An interrupt, in the capture and in the block: the processes of the checks are ended, and not waited for."""
    monkeypatch.setitem(gate._AFTER, "dtype", lambda _: time.sleep(WAIT))
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt), enter(planted_models.sound(), 2):
        raise KeyboardInterrupt
    monkeypatch.setitem(gate._BEFORE, "data read", lambda context: context.room(sleep))
    monkeypatch.setattr(checked_capture, "capture", interrupt)
    with pytest.raises(KeyboardInterrupt):
        torchferry.check(planted_models.branch_on_data(), jobs=2)
    assert time.monotonic() - start < WAIT
    assert threading.active_count() == 1


def sleep(source):
    time.sleep(WAIT)
    return []


def interrupt(*_):
    raise KeyboardInterrupt


def test_the_steps_of_checks_in_another_process_are_shown():
    steps: list[Step] = []
    clock = Stopwatch(steps.append)

    def check(own_clock: Stopwatch) -> str:
        with own_clock("soundness"):
            own_clock.report("soundness", "dtype", 1, 2, 0.5)
        return "done"

    with checked_capture._check_in_fork("m", check, clock, is_forked=True) as wait:
        assert wait() == "done"
    assert [s for s in steps if s.part] == [Step("soundness", "dtype", 1, 2)]
    assert clock.parts == {("soundness", "dtype"): 0.5}

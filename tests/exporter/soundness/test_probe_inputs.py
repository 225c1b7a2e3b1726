"""Inputs that the gate draws: which of them a model is run on, by what a call costs."""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Any

import planted_models
import pytest
import torch
from gate_specimens import model_of, source_for

import torchferry
from exporter.common.errors import UnsoundError
from exporter.common.forking import ForkFailedError, run_in_fork
from exporter.common.stopwatch import Step
from exporter.model.eager import warmup
from exporter.model.eager.call_cost import NUMBERS_PER_OPERATION, CallCost
from exporter.model.eager.evaluation import eager_context
from exporter.model.eager.warmup import run_first
from exporter.soundness import branch_search, first_calls, gate, probe_inputs
from exporter.soundness.clean_room import CleanRooms
from exporter.soundness.run_recording import record_run

F = torch.float64


def _halve(self, x):
    while x.abs().max() > 1.0:
        x = x * self.factor
    return x


@pytest.mark.parametrize(("function", "is_slow"), [(_halve, True), (lambda self, x: x.tanh() * self.factor, False)])
def test_draws_that_take_too_long_are_left_out(monkeypatch, function, is_slow):
    model: Any = model_of(function)
    model.factor = 1 - 1e-5
    source = source_for(model)
    draws = [(name, (torch.full((5, 3), value, dtype=F),)) for name, value in (("small", 0.5), ("large", 1e8))]
    monkeypatch.setattr(probe_inputs, "SECONDS", 0.1)
    with eager_context(source):
        kept = run_in_fork(first_calls.observe_first_calls, source, draws, 0.0, math.inf).chosen.draws
    assert [label for label, _ in kept if label in ("small", "large")] == ["small"] + ["large"] * (not is_slow)


def _shrink_from_one(self, x):
    # At a number above 1 it never ends: 1.001 is what the search tries for the literal.
    while x.max() > 1.0:
        x = x * 1.0
    return x


def test_the_search_for_branches_ends_where_a_call_does_not():
    source = source_for(model_of(_shrink_from_one))
    draws = [("traced", (torch.full((5, 3), 0.5, dtype=F),)), ("other values", (torch.full((5, 3), 0.2, dtype=F),))]
    with eager_context(source):
        chosen = run_in_fork(first_calls.observe_first_calls, source, draws, 0.0, math.inf, seconds=60.0).chosen
    assert [label for label, _ in chosen.draws][:2] == ["traced", "other values"]


def test_a_costly_model_has_the_draws_that_it_can_afford():
    source = source_for(model_of(lambda self, x: x.tanh()))
    probes = probe_inputs.draw_probe_inputs(run_first(source, 0).sampler, 5, torch.Generator().manual_seed(0))
    kept = {n: probe_inputs.keep_affordable_draws(probes, 10.0, 10.0 * n) for n in (0, 4, 6.5, 1000, math.inf)}
    labels = {n: [label for label, _ in draws] for n, draws in kept.items()}
    assert set(labels[0]) == set(labels[4]) == set(probe_inputs.SMALLEST)
    assert set(labels[6.5]) == {*probe_inputs.SMALLEST, *probe_inputs.PREFERRED[:2]}
    # In the order of all, the traced one first.
    assert labels[6.5] == [label for label, _ in probes if label in labels[6.5]]
    assert labels[6.5][0] == "traced"
    assert labels[1000] == labels[math.inf] == [label for label, _ in probes]
    assert set(probe_inputs.PREFERRED) < set(labels[1000])


def test_draws_are_chosen_by_what_a_call_computes():
    source = source_for(model_of(lambda self, x: x.tanh()))
    probes = probe_inputs.draw_probe_inputs(run_first(source, 0).sampler, 5, torch.Generator().manual_seed(0))
    run = record_run(source, probes[0][1])
    chosen = {n: branch_search.choose_draws(source, probes, 7e8, n * 7e8, run, ()) for n in (1, 6.5, 1000)}
    assert [len(c.draws) for c in chosen.values()] == [4, 6, len(probes)]
    left_out = {n: len(probes) - len(c.draws) for n, c in chosen.items()}
    assert {n: c.left_out for n, c in chosen.items()} == left_out
    for n, c in chosen.items():
        assert c.seconds == pytest.approx(0.7 * left_out[n])
    # Nothing is known of a call.
    assert branch_search.choose_draws(source, probes, 0.0, 1.0, run, ()).left_out == 0


@pytest.mark.parametrize("batch_ndim", [1, 0])
def test_the_gate_knows_what_a_call_computes(batch_ndim, monkeypatch):
    """As warmup has counted it: tanh of 5 rows, or of whole shapes, and a product."""
    model: Any = model_of(lambda self, x: x.tanh() * self.scale)
    if not batch_ndim:
        model.signature = torchferry.Signature.of({"x": (5, 3)}, {"y": (5, 3)}, batch_ndim=0)
    counts = list[float]()

    def observe(source, probes, numbers, limit):
        counts.append(numbers)
        return first_calls.observe_first_calls(source, probes, numbers, limit)

    source = source_for(model)
    monkeypatch.setattr(gate, "observe_first_calls", observe)
    room: Any = lambda function, *arguments: function(source, *arguments)  # noqa: E731
    first = warmup.measure_cost(run_first(source, 0), 0)
    probes = probe_inputs.draw_probe_inputs(first.sampler, first.sizes[0], torch.Generator().manual_seed(0))
    gate._observe_first_calls(first, room, probes, gate.GateOptions())
    assert counts == [2 * (NUMBERS_PER_OPERATION + 15)]


@pytest.mark.parametrize("thorough", [False, True])
def test_the_draws_of_a_costly_model_are_in_the_report(monkeypatch, thorough):
    monkeypatch.setattr(gate, "LIMIT", 1.0)
    (report,) = torchferry.check(planted_models.sound(), thorough=thorough)
    assert ("draws were not run" in str(report.findings)) is not thorough
    with pytest.raises(UnsoundError) as caught:
        torchferry.check(planted_models.branch_on_data(), thorough=thorough)
    assert caught.value.details["check"] == "data read"


def test_a_slow_model_keeps_few_draws_where_none_could_be_chosen(monkeypatch):
    def fail(*_):
        raise ForkFailedError("as planted")

    monkeypatch.setattr(warmup, "SLOW_CALL", 0.0)
    monkeypatch.setattr(first_calls, "choose_draws", fail)
    source = source_for(planted_models.sound())
    first = run_first(source, 0)
    probes = probe_inputs.draw_probe_inputs(first.sampler, 5, torch.Generator().manual_seed(0))
    room: Any = lambda function, *arguments: function(source, *arguments)  # noqa: E731
    calls, findings = gate._observe_first_calls(first, room, probes, gate.GateOptions())
    # Nothing is known of the model then: every check runs.
    assert not calls.quiet
    assert {label for label, _ in calls.chosen.draws} == set(probe_inputs.SMALLEST)
    assert [f.severity for f in findings] == ["sound", "not run"]


@pytest.mark.parametrize("thorough", [False, True])
def test_a_slow_model_is_announced_and_has_the_smallest_checks(monkeypatch, thorough):
    monkeypatch.setattr(warmup, "SLOW_CALL", 0.0)
    steps: list[Step] = []
    (report,) = torchferry.check(planted_models.sound(), thorough=thorough, watch=steps.append)
    (notice,) = [step for step in steps if step.is_notice]
    assert re.fullmatch(r"a call takes \d+ s, an export about \d+ of them: \d+ minutes", notice.part)
    assert ("draws were not run" in str(report.findings)) is not thorough
    # The checks are all there, and refuse.
    with pytest.raises(UnsoundError) as caught:
        torchferry.check(planted_models.branch_on_data(), thorough=thorough)
    assert caught.value.details["check"] == "data read"


@pytest.mark.parametrize("cost", [0.0, 7e8])
def test_what_is_traced_is_the_first_of_the_chosen_draws(cost):
    """The capture does not wait for the choice."""
    first = run_first(source_for(planted_models.sound()), 0)
    first = dataclasses.replace(first, cost=CallCost((1, 2), (cost, 2 * cost)))
    with CleanRooms(first.source) as room:
        checks = gate.make_eager_checks(first, room, 0, gate.GateOptions())
        draws = checks.run()[0].draws
    assert len(draws) < len(checks.context.draws) or not cost
    assert draws[0][0] == "traced"
    for value, traced in zip(draws[0][1], checks.context.inputs, strict=True):
        assert torch.equal(value, traced)

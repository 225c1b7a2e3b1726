"""What is seen in the first calls of a model, and that a check which saw anything runs."""

from __future__ import annotations

import os

import pytest
import torch
from planted_models import Model

from exporter.common.forking import run_in_fork
from exporter.frontends import python_factory
from exporter.model.eager.warmup import run_first
from exporter.soundness import gate, probe_inputs
from exporter.soundness.checks import settings
from exporter.soundness.clean_room import CleanRooms
from exporter.soundness.first_calls import observe_first_calls

QUIET = {"random numbers", "outside world", "settings", "hash seed", "exception", "device", "unused input", "hook"}
UNIT = "m"


def use(unit: str) -> None:
    global UNIT  # noqa: PLW0603
    UNIT = unit


def source_for(function):
    return python_factory.source_from_module(Model(function), "m", None, "here")


def _take_inverse(self, x):
    try:
        return torch.linalg.inv(x[:, :1, None])[:, 0] + x
    except RuntimeError:
        return x


def _register_hook(self, x):
    y = x * 2
    if y.requires_grad:
        y.register_hook(lambda gradient: gradient * 2)
    return y


MODELS = {
    "random numbers": lambda self, x: x * torch.rand(3, dtype=x.dtype),
    "outside world": lambda self, x: x * len(os.environ.get("PATH", "")),
    "settings": lambda self, x: x * (2.0 if UNIT == "m" else 1.0),
    "hash seed": lambda self, x: x * len({str(n) for n in x.shape}),
    "exception": _take_inverse,
    "device": lambda self, x: x + torch.ones(3, device=x.device, dtype=x.dtype),
    "unused input": lambda self, x: torch.ones_like(x),
    "hook": _register_hook,
}


def observe(function) -> frozenset[str]:
    source = source_for(function)
    probes = probe_inputs.draw_probe_inputs(run_first(source, 0).sampler, 5, torch.Generator().manual_seed(0))
    return run_in_fork(observe_first_calls, source, probes, 0.0, 1e9).quiet


def test_a_plain_model_gives_them_nothing_to_look_at():
    assert observe(lambda self, x: x.tanh()) == QUIET


@pytest.mark.parametrize("check", MODELS)
def test_what_a_check_saw_is_looked_at(check):
    assert QUIET - observe(MODELS[check]) == {check}


def test_where_watching_fails_every_check_looks_for_itself(monkeypatch):
    def fail(source, footprint):
        raise ValueError("as planted")

    monkeypatch.setattr(settings, "list_settings", fail)
    assert observe(lambda self, x: x.tanh()) == frozenset()


def test_random_numbers_that_torch_draws_are_in_what_outputs_depend_on():
    """Dropout at rate zero draws none, and is an operation that does."""
    assert "random numbers" not in observe(lambda self, x: torch.nn.functional.dropout(x, 0.5))


def test_a_quiet_check_does_not_run_and_is_reported():
    calls, reports = list[str](), list[tuple[str, int, int, float]]()
    checks = {name: lambda context, name=name: calls.append(name) or [] for name in ("a", "b", "c")}
    source = source_for(lambda self, x: x)
    with CleanRooms(source) as room:
        context = gate.EagerContext(source, (), (), room)
        results = gate._run_in_rooms(checks, context, frozenset({"b"}))
        options = gate.GateOptions(report=lambda *report: reports.append(report))
        gate._collect("m", ["random numbers", "outside world", "hidden state"], results, [], options)
    assert calls == ["a", "c"]
    assert [name for name, *_ in reports] == ["random numbers", "outside world", "hidden state"]
    assert reports[1][-1] == 0.0

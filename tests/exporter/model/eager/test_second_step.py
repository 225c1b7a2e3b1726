"""What follows a first step from rest: so that cases show what a model makes of its history."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from project import ROOT

import torchferry
from exporter.frontends import resolve
from exporter.frontends.model_request import ModelRequest
from exporter.frontends.python_factory import source_from_module
from exporter.model.eager.evaluation import eager_context, evaluate
from exporter.model.eager.second_step import append_second_step
from exporter.model.eager.warmup import run_first
from exporter.model.source import Source

F = torch.float64
EXAMPLES = ROOT / "examples"


def source_of(name: str) -> Source:
    return resolve.load(ModelRequest(f"{EXAMPLES / name}.py:make_model"), "", None)


@pytest.fixture
def return_map() -> Source:
    return source_of("return_map")


def after(source: Source) -> Source:
    with eager_context(source):
        return append_second_step(source)


def named(source: Source, position: int) -> dict[str, torch.Tensor]:
    return dict(zip((s.name for s in source.inputs), source.calls[position], strict=True))


def test_states_are_those_of_the_step_before_and_the_rate_goes_on(return_map):
    result = after(return_map)
    first, second = named(result, 0), named(result, 1)
    with eager_context(return_map):
        solved = evaluate(return_map, result.calls[0])
    for state in ("stress", "ep"):
        assert torch.equal(second[f"{state}~1"], solved[state])
    assert torch.equal(second["strain~1"], first["strain"])
    assert torch.equal(second["strain"], 2 * first["strain"])


def test_cases_have_a_history(return_map):
    """Of elements at rest as well."""
    inputs = dict(zip((s.name for s in return_map.inputs), run_first(return_map, 0).inputs, strict=True))
    moved = inputs["strain~1"].any(1)
    assert bool(moved.any())
    assert not bool(moved.all())


def test_elements_that_do_not_converge_have_no_next_step(return_map):
    values = named(return_map, 0)
    values["strain"] = values["strain"].clone()
    values["strain"][5] = torch.nan
    result = after(dataclasses.replace(return_map, calls=(tuple(values.values()),)))
    assert len(result.calls[1][0]) == len(result.calls[0][0]) - 1
    assert all(bool(torch.isfinite(t).all()) for t in result.calls[1])


def test_a_history_that_is_there_is_left_as_it_is(return_map):
    values = named(return_map, 0)
    values["ep~1"] = values["ep~1"] + 1e-3
    moved = dataclasses.replace(return_map, calls=(tuple(values.values()),))
    several = dataclasses.replace(return_map, calls=return_map.calls * 2)
    drawn = dataclasses.replace(return_map, calls=())
    explicit = source_of("radial_return")
    # What is prescribed has no rate: nothing would move.
    names = [s for s in return_map.inputs if s.name != "strain~1"]
    kept = tuple(v for n, v in named(return_map, 0).items() if n != "strain~1")
    still = dataclasses.replace(
        return_map,
        inputs=tuple(names),
        calls=(kept,),
        module=lambda strain, *rest: return_map.module(strain, torch.zeros_like(strain), *rest),
    )
    for source in (moved, several, drawn, explicit, still):
        assert after(source) is source


def test_a_model_that_fails_is_left_to_warmup(return_map):
    def fails(*inputs: torch.Tensor) -> torch.Tensor:
        raise ValueError("not today")

    def fails_later(strain: torch.Tensor, old: torch.Tensor, *rest: torch.Tensor) -> object:
        if bool(old.any()):
            raise ValueError("no history, please")
        return return_map.module(strain, old, *rest)

    for module in (fails, fails_later):
        source = dataclasses.replace(return_map, module=module)
        assert after(source) is source


class TwoSteps(torch.nn.Module):
    """The second difference of ``x`` is the load."""

    signature = torchferry.Signature.of(
        {"x": (), "load": (), "load~1": (), "x~1": (), "x~2": (), "t": (), "t~1": ()}, {"x_residual": ()}
    )

    def forward(self, x, load, load_before, before, two_before, t, t_before):
        return (x - 2 * before + two_before) - (load + load_before) / 2 * (t - t_before).square() + 0.1 * x**3


def test_a_history_of_two_steps():
    model = torchferry.ImplicitUpdate(TwoSteps(), ["x"], name="two_steps")
    zeros, load = torch.zeros(4, dtype=F), torch.linspace(0.5, 2.0, 4, dtype=F)
    arguments = {
        "load": load,
        "load~1": zeros,
        "x~1": zeros,
        "x~2": zeros,
        "t": torch.full((4,), 3.0, dtype=F),
        "t~1": zeros + 2.0,
    }
    source = source_from_module(model, "two_steps", arguments, "two_steps")
    result = after(source)
    first, second = named(result, 0), named(result, 1)
    with eager_context(source):
        solved = evaluate(source, result.calls[0])["x"]
    assert torch.equal(second["x~1"], solved)
    assert torch.equal(second["x~2"], first["x~1"])
    assert torch.equal(second["t"], torch.full((4,), 4.0, dtype=F))
    assert torch.equal(second["t~1"], first["t"])
    assert torch.equal(second["load"], 2 * load)

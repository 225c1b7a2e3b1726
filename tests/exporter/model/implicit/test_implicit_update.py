"""Implicit updates of torch modules in eager mode: what they take and give, and systems that are none."""

from __future__ import annotations

import cubic_models
import pytest
import torch
from cubic_models import POINTS, Decay, F, update
from torch import nn

import torchferry
from exporter.common.errors import UsageError

Part, TensorSpec = torchferry.Part, torchferry.TensorSpec


def test_the_first_guess_is_the_previous_value():
    model = update()
    assert [s.name for s in model.signature.inputs] == ["x~1", "dt"]
    (x,) = model(*POINTS.values())
    torch.testing.assert_close(x, cubic_models.solved(POINTS["x~1"], POINTS["dt"]), rtol=1e-12, atol=0)


def test_a_guess_that_is_asked_for_and_one_that_is_predicted():
    residual = Part(Decay(), {"x": (), "before": (), "dt": ()}, {"x_residual": ()})
    asked = torchferry.ImplicitUpdate(residual, ["x"])
    assert [s.name for s in asked.signature.inputs] == ["before", "dt", "x"]
    predictor = Part(nn.Identity(), {"start": ()}, {"x": ()})
    predicted = torchferry.ImplicitUpdate(residual, {"x": "x_residual"}, predictor=predictor)
    assert [s.name for s in predicted.signature.inputs] == ["before", "dt", "start"]
    for model in (asked, predicted):
        (x,) = model(*POINTS.values(), torch.ones(3, dtype=F))
        torch.testing.assert_close(x, cubic_models.solved(POINTS["x~1"], POINTS["dt"]), rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    ("unknowns", "outputs", "message"),
    [
        ([], {"x_residual": ()}, "no unknowns"),
        (["y"], {"x_residual": ()}, "does not take the unknown 'y'"),
        (["x"], {"r": ()}, "'x' has no residual"),
        (["x"], {"x_residual": (2,)}, "not one equation for each component"),
        (["x"], {"x_residual": TensorSpec("x_residual", dtype="float32")}, "not one equation"),
        (["x"], {"x_residual": (), "stress": ()}, "not square"),
        ({"x": "r", "dt": "r"}, {"r": ()}, "not square"),
    ],
)
def test_systems_that_are_none(unknowns, outputs, message):
    residual = Part(Decay(), {"x": (), "x~1": (), "dt": ()}, outputs)
    with pytest.raises(UsageError, match=message):
        torchferry.ImplicitUpdate(residual, unknowns)


def test_units_of_residual_and_predictor_agree():
    def make(x="MPa", guess="MPa", dt="s", step=""):
        taken = {n: TensorSpec(n, unit=u) for n, u in {"x": x, "before": "", "dt": dt}.items()}
        predictor = Part(nn.Identity(), {"dt": TensorSpec("dt", unit=step)}, {"x": TensorSpec("x", unit=guess)})
        update = torchferry.ImplicitUpdate(Part(Decay(), taken, {"r": ()}), {"x": "r"}, predictor=predictor)
        return {s.name: s.unit for s in (*update.signature.inputs, *update.signature.outputs)}

    assert make(guess="N/mm^2") == {"before": "", "dt": "s", "x": "MPa"}
    assert make(dt="", step="s")["dt"] == "s"
    assert make(x="")["x"] == "MPa"
    with pytest.raises(UsageError, match=r"'x' has two units(.|\n)*kPa in 'predictor'(.|\n)*MPa as in 'residual'"):
        make(guess="kPa")
    with pytest.raises(UsageError, match=r"'dt' has two units(.|\n)*hour in 'predictor'"):
        make(step="hour")
    taken = {"x": TensorSpec("x", unit="MPa"), "x~1": TensorSpec("x~1", unit="Pa"), "dt": ()}
    with pytest.raises(UsageError, match=r"Pa in 'x~1'"):
        torchferry.ImplicitUpdate(Part(Decay(), taken, {"x_residual": ()}), ["x"])
    predictor = Part(nn.Identity(), {"x~1": TensorSpec("x~1", unit="Pa")}, {"x": TensorSpec("x", unit="MPa")})
    with pytest.raises(UsageError, match=r"Pa in 'x~1'"):
        torchferry.ImplicitUpdate(Part(Decay(), taken, {"x_residual": ()}), ["x"], predictor=predictor)
    alone = torchferry.ImplicitUpdate(Part(Decay(), taken | {"x~1": ()}, {"x_residual": ()}), ["x"])
    assert {s.name: s.unit for s in alone.signature.inputs} == {"x~1": "MPa", "dt": ""}


@pytest.mark.parametrize("shape", [(2,), TensorSpec("x", dtype="float32")], ids=["shape", "dtype"])
def test_a_first_guess_of_another_kind(shape):
    predictor = Part(nn.Identity(), {"start": ()}, {"x": shape})
    residual = Part(Decay(), {"x": (), "before": (), "dt": ()}, {"x_residual": ()})
    with pytest.raises(UsageError, match="first guess of 'x'"):
        torchferry.ImplicitUpdate(residual, ["x"], predictor=predictor)
    other = Part(Decay(), {"x": (), "x~1": shape, "dt": ()}, {"x_residual": ()})
    with pytest.raises(UsageError, match=r"(?s)first guess of 'x'.*'x~1'"):
        torchferry.ImplicitUpdate(other, ["x"])


def test_a_residual_without_names():
    with pytest.raises(UsageError, match="declares no variables"):
        torchferry.ImplicitUpdate(nn.Identity(), ["x"])


def test_tangents_are_those_of_the_implicit_function_theorem():
    model = update()
    k = model.get_parameter("residual.k")
    old, dt = (t.clone().requires_grad_() for t in POINTS.values())
    (x,) = model(old, dt)
    by_old, by_dt, by_k = torch.autograd.grad(x.sum(), [old, dt, k])
    slope = 1 + 6 * dt * x**2
    torch.testing.assert_close(by_old, 1 / slope, rtol=1e-14, atol=0)
    torch.testing.assert_close(by_dt, -2 * x**3 / slope, rtol=1e-14, atol=0)
    torch.testing.assert_close(by_k, -(dt * x**3 / slope).sum(), rtol=1e-14, atol=0)


def test_tangents_of_a_solver_that_stops_early_are_those_of_what_it_returns():
    """The Jacobian of the iterate before would be off by parts in a hundred."""
    model = update(settings=torchferry.Settings(rel_tol=0.1, abs_tol=0.1))
    old, dt = (t.clone().requires_grad_() for t in POINTS.values())
    (x,) = model(old, dt)
    assert float((x - cubic_models.solved(old, dt)).detach().abs().max()) > 1e-6
    (by_old,) = torch.autograd.grad(x.sum(), old)
    torch.testing.assert_close(by_old, 1 / (1 + 6 * dt * x**2), rtol=1e-14, atol=0)


def test_a_residual_without_the_name():
    residual = Part(
        type("Other", (nn.Module,), {"forward": lambda s, x, old: {"r": x - old}})(),
        {"x": (), "x~1": ()},
        {"x_residual": ()},
    )
    with pytest.raises(UsageError, match="'x_residual'"):
        torchferry.ImplicitUpdate(residual, ["x"])(torch.ones(3, dtype=F))


def test_batches_of_one_and_of_many():
    (x,) = update()(POINTS["x~1"], POINTS["dt"][:1])
    torch.testing.assert_close(x, cubic_models.solved(POINTS["x~1"], POINTS["dt"][:1].expand(3)), rtol=1e-12, atol=0)

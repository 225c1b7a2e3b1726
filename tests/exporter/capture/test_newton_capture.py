"""The file that holds an implicit update, in Python and natively."""

from __future__ import annotations

import cubic_models
import numpy as np
import pytest
import torch
from cubic_models import POINTS, F, update
from gate_specimens import load
from project import ROOT
from torch import nn

import torchferry
from exporter.capture import batch_recording, derivative_plan, fx_tracing
from exporter.common.errors import UsageError
from exporter.model.eager.call_cost import CallCost
from exporter.model.implicit.newton_solver import CONVERGED, NOT_CONVERGED, NOT_FINITE
from runtime_checks import native_build
from runtime_checks.runners.libtorch_runner import LibtorchRunner
from runtime_checks.verification import collect_report

Signature = torchferry.Signature


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Through the whole gate."""
    path = tmp_path_factory.mktemp("update") / "decay.pt"
    torchferry.export(update(), output=path, derivatives=["all", "x:residual.k"], jvp=True, vjp=True)
    return path


def test_the_file(path):
    loaded = torchferry.load(path)
    result = loaded.call("forward", POINTS)["x"]
    torch.testing.assert_close(result, cubic_models.solved(POINTS["x~1"], POINTS["dt"]), rtol=1e-12, atol=0)
    # Without anything of ours.
    (alone,) = torch.jit.load(str(path))(*POINTS.values())
    assert torch.equal(alone, result)
    blocks = loaded.call("jacobian", POINTS)
    slope = 1 + 6 * POINTS["dt"] * result**2
    torch.testing.assert_close(blocks["d x / d x~1"], 1 / slope)
    torch.testing.assert_close(blocks["d x / d residual.k"], -POINTS["dt"] * result**3 / slope)
    tangents = {f"tangent:{n}": torch.ones_like(v) for n, v in POINTS.items()}
    pushed = loaded.call("jvp", POINTS | tangents)["tangent:x"]
    torch.testing.assert_close(pushed, blocks["d x / d x~1"] + blocks["d x / d dt"])


def test_loops_and_products_are_recorded(tmp_path, monkeypatch):
    """A trace with symbolic sizes takes many times as long, and is for what the runs do not determine."""

    def refuse(*_args, **_options):
        raise AssertionError("traced with symbolic sizes")

    monkeypatch.setattr(batch_recording, "trace_to_fx", refuse)
    monkeypatch.setattr(derivative_plan, "trace_to_fx", refuse)
    torchferry.export(update(), output=tmp_path / "m.pt", derivatives=["all"], jvp=True, vjp=True)


def test_products_of_a_costly_model_are_traced_without_numbers(tmp_path, monkeypatch):
    """Its runs would hold the values of dozens of elements."""
    traced = []

    def trace(*arguments, **options):
        traced.append(arguments)
        return fx_tracing.trace_to_fx(*arguments, **options)

    monkeypatch.setattr(CallCost, "is_costly", True)
    monkeypatch.setattr(derivative_plan, "trace_to_fx", trace)
    torchferry.export(f"{ROOT}/examples/solvers/decay.py:make_model", output=tmp_path / "m.pt", derivatives=["all"])
    assert traced


def test_an_element_is_the_same_in_every_batch(path):
    loaded = torchferry.load(path)
    draw = torch.Generator().manual_seed(0)
    many = {n: 0.05 + 5 * torch.rand(10_000, generator=draw, dtype=F) for n in POINTS}
    whole = loaded.call("forward", many)["x"]
    for i in (0, 4095, 4096, 9_999):
        alone = loaded.call("forward", {n: v[i : i + 1] for n, v in many.items()})["x"]
        assert torch.equal(alone, whole[i : i + 1])


def test_failure_is_an_answer(path):
    loaded = torchferry.load(path)
    values = {n: v.clone() for n, v in POINTS.items()}
    values["x~1"][1] = float("nan")
    info = loaded.call("newton_info", values)
    assert info["status"].tolist() == [CONVERGED, NOT_FINITE, CONVERGED]
    good = loaded.call("forward", POINTS)["x"]
    result = loaded.call("forward", values)["x"]
    assert result.isnan().tolist() == [False, True, False]
    assert torch.equal(result[[0, 2]], good[[0, 2]])
    # A tangent of what has not converged is none.
    assert loaded.call("jacobian", values)["d x / d dt"].isnan().tolist() == [False, True, False]


def test_settings_can_be_set_in_the_file(path):
    loaded = torchferry.load(path)
    (solver,) = loaded.contract.solvers
    assert (solver.path, solver.on_failure, solver.settings["max_its"]) == ("newton", "nan", 25)
    most = int(loaded.call("newton_info", POINTS)["iterations"].max())
    loaded.set_parameter("newton.max_its", torch.tensor(most - 1))
    info = loaded.call("newton_info", POINTS)
    assert NOT_CONVERGED in info["status"].tolist()
    assert loaded.call("forward", POINTS)["x"].isnan().any()
    loaded.set_parameter("newton.max_its", torch.tensor(25))
    loaded.set_parameter("newton.rel_tol", torch.tensor(0.5, dtype=F))
    assert int(loaded.call("newton_info", POINTS)["iterations"].max()) < most


def test_natively(path):
    report = collect_report(path, runners=[LibtorchRunner()])
    assert report.passed
    assert {"stored cases", "finite differences"} <= {c.check for c in report.checks if c.verdict == "passed"}


def test_in_c_it_is_a_status(path):
    """All outputs are written, and the text says which elements are NaN."""
    solver = load(ROOT / "examples" / "solvers" / "robertson_scipy.py")
    model = solver.Model(str(path), str(native_build.build() / "lib" / "libtorchferry.so"))
    arguments = {n: v.numpy().copy() for n, v in POINTS.items()}
    outputs = {"x": np.zeros(3)}
    model("forward", arguments, outputs)
    good = outputs["x"].copy()
    arguments["x~1"][1] = np.nan
    with pytest.raises(RuntimeError, match=r"not converged for 1 of 3 elements(.|\n)*elements 1 \(from 0\)"):
        model("forward", arguments, outputs)
    np.testing.assert_array_equal(outputs["x"], [good[0], np.nan, good[2]])
    # What says why is no failure itself.
    norms = {"residual_norm": np.zeros(3)}
    model("newton_info", arguments, norms)
    assert np.isnan(norms["residual_norm"]).tolist() == [False, True, False]


class Own(nn.Module):
    """NaN for another reason than a solve."""

    signature = Signature.of({"x": (), "dt": ()}, {"y": ()})

    def forward(self, x, dt):
        return torch.sqrt(x - 0.02 * dt)


@pytest.mark.usefixtures("without_the_gate")
def test_in_c_other_nans_are_no_failure_of_a_solve(tmp_path):
    model = torchferry.ComposedModel([update(), Own()], additional_outputs=["x"])
    model.__dict__["example_inputs"] = update().__dict__["example_inputs"]
    torchferry.export(model, output=tmp_path / "m.pt")
    solver = load(ROOT / "examples" / "solvers" / "robertson_scipy.py")
    loaded = solver.Model(str(tmp_path / "m.pt"), str(native_build.build() / "lib" / "libtorchferry.so"))
    outputs = {"x": np.zeros(2), "y": np.zeros(2)}
    loaded("forward", {"x~1": np.array([0.01, 1.0]), "dt": np.array([1.0, 1.0])}, outputs)
    assert np.isnan(outputs["y"]).tolist() == [True, False]


@pytest.mark.usefixtures("without_the_gate")
def test_what_becomes_of_what_fails(tmp_path):
    values = {"x~1": torch.tensor([1.0, float("nan")], dtype=F), "dt": torch.ones(2, dtype=F)}
    torchferry.export(update(), output=tmp_path / "last.pt", on_failure="last")
    assert torchferry.load(tmp_path / "last.pt").contract.solvers[0].on_failure == "last"
    torchferry.export(update(), output=tmp_path / "raise.pt", on_failure="raise")
    with pytest.raises(Exception, match="did not converge for 1 of 2 elements"):
        torchferry.load(tmp_path / "raise.pt").call("forward", values)
    with pytest.raises(UsageError, match="nan, last, raise"):
        torchferry.export(update(), output=tmp_path / "m.pt", on_failure="zero")  # pyright: ignore[reportArgumentType]
    with pytest.raises(UsageError, match="solves nothing"):
        torchferry.export(
            nn.Linear(1, 1), inputs={"input": torch.ones(3, 1)}, output=tmp_path / "m.pt", on_failure="nan"
        )


class Second(nn.Module):
    signature = Signature.of({"y": (), "y~1": (), "x": (), "dt": ()}, {"y_residual": ()})

    def forward(self, y, old, x, dt):
        return y - x + 0.5 * dt * y**3 + 0.0 * old


class Stress(nn.Module):
    signature = Signature.of({"x": (), "E": ()}, {"stress": ()})

    def forward(self, x, E):
        return E * x


@pytest.mark.thorough
@pytest.mark.usefixtures("without_the_gate")
def test_composed_with_others(tmp_path):
    """Behind one another, under names of their own; a history variable passes through."""
    second = torchferry.ImplicitUpdate(Second(), ["y"], name="second")
    model = torchferry.ComposedModel([update(name="first"), second, Stress()], additional_outputs=["x"])
    values = {**POINTS, "y~1": torch.ones(3, dtype=F), "E": torch.full((3,), 2.0, dtype=F)}
    (exported,) = torchferry.export(model, output=tmp_path / "m.pt", inputs=values, derivatives="all")
    assert [s.path for s in exported.contract.solvers] == ["first.newton", "second.newton"]
    loaded = torchferry.load(tmp_path / "m.pt")
    result = loaded.call("forward", {s.name: values[s.name] for s in exported.contract.inputs})
    x = cubic_models.solved(POINTS["x~1"], POINTS["dt"])
    torch.testing.assert_close(result["stress"], 2 * x)
    torch.testing.assert_close(result["y"], cubic_models.solved(x, POINTS["dt"], 0.5))
    info = loaded.call("newton_info", {s.name: values[s.name] for s in exported.contract.inputs})
    assert info["status"].shape == (3, 2)

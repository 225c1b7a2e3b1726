"""Implicit updates of torch modules: what they take, what bad ones get, and the file that holds one."""

from __future__ import annotations

import contextlib
import copy
import dataclasses

import cubic
import numpy as np
import pytest
import torch
from conftest import ROOT
from cubic import Decay, F, update
from specimens import load
from torch import nn

import torchferry
from exporter.capture import implicit
from exporter.errors import CaptureError, MismatchError, UnsupportedError, UsageError, WarmupError
from exporter.newton import CONVERGED, NOT_CONVERGED, NOT_FINITE
from runtime_checks import native_library
from runtime_checks.runners.libtorch import Libtorch
from runtime_checks.verify import examine

Part, Signature, TensorSpec = torchferry.Part, torchferry.Signature, torchferry.TensorSpec
POINTS = {"x~1": torch.tensor([0.5, 2.0, 7.0], dtype=F), "dt": torch.tensor([0.3, 0.1, 2.0], dtype=F)}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Through the whole gate."""
    path = tmp_path_factory.mktemp("update") / "decay.pt"
    torchferry.export(update(), output=path, derivatives=["all", "x:residual.k"], jvp=True, vjp=True)
    return path


def test_the_first_guess_is_the_previous_value():
    model = update()
    assert [s.name for s in model.signature.inputs] == ["x~1", "dt"]
    (x,) = model(*POINTS.values())
    torch.testing.assert_close(x, cubic.solved(POINTS["x~1"], POINTS["dt"]), rtol=1e-12, atol=0)


def test_a_guess_that_is_asked_for_and_one_that_is_predicted():
    residual = Part(Decay(), {"x": (), "before": (), "dt": ()}, {"x_residual": ()})
    asked = torchferry.ImplicitUpdate(residual, ["x"])
    assert [s.name for s in asked.signature.inputs] == ["before", "dt", "x"]
    predictor = Part(nn.Identity(), {"start": ()}, {"x": ()})
    predicted = torchferry.ImplicitUpdate(residual, {"x": "x_residual"}, predictor=predictor)
    assert [s.name for s in predicted.signature.inputs] == ["before", "dt", "start"]
    for model in (asked, predicted):
        (x,) = model(*POINTS.values(), torch.ones(3, dtype=F))
        torch.testing.assert_close(x, cubic.solved(POINTS["x~1"], POINTS["dt"]), rtol=1e-12, atol=0)


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
    torch.testing.assert_close(by_old, 1 / slope)
    torch.testing.assert_close(by_dt, -2 * x**3 / slope)
    torch.testing.assert_close(by_k, -(dt * x**3 / slope).sum())


def test_the_file(path):
    loaded = torchferry.load(path)
    found = loaded.call("forward", POINTS)["x"]
    torch.testing.assert_close(found, cubic.solved(POINTS["x~1"], POINTS["dt"]), rtol=1e-12, atol=0)
    # Without anything of ours.
    (alone,) = torch.jit.load(str(path))(*POINTS.values())
    assert torch.equal(alone, found)
    blocks = loaded.call("jacobian", POINTS)
    slope = 1 + 6 * POINTS["dt"] * found**2
    torch.testing.assert_close(blocks["d x / d x~1"], 1 / slope)
    torch.testing.assert_close(blocks["d x / d residual.k"], -POINTS["dt"] * found**3 / slope)
    tangents = {f"tangent:{n}": torch.ones_like(v) for n, v in POINTS.items()}
    pushed = loaded.call("jvp", POINTS | tangents)["tangent:x"]
    torch.testing.assert_close(pushed, blocks["d x / d x~1"] + blocks["d x / d dt"])


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
    found = loaded.call("forward", values)["x"]
    assert found.isnan().tolist() == [False, True, False]
    assert torch.equal(found[[0, 2]], good[[0, 2]])
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
    report = examine(path, runners=[Libtorch()])
    assert report.passed
    assert {"stored cases", "finite differences"} <= {c.check for c in report.checks if c.verdict == "passed"}


def test_in_c_it_is_a_status(path):
    """All outputs are written, and the text says which elements are NaN."""
    solver = load(ROOT / "examples" / "solvers" / "robertson_scipy.py")
    model = solver.Model(str(path), str(native_library.build() / "lib" / "libtorchferry.so"))
    given = {n: v.numpy().copy() for n, v in POINTS.items()}
    outputs = {"x": np.zeros(3)}
    model("forward", given, outputs)
    good = outputs["x"].copy()
    given["x~1"][1] = np.nan
    with pytest.raises(RuntimeError, match=r"not converged for 1 of 3 elements(.|\n)*elements 1 \(from 0\)"):
        model("forward", given, outputs)
    np.testing.assert_array_equal(outputs["x"], [good[0], np.nan, good[2]])
    # What says why is no failure itself.
    norms = {"residual_norm": np.zeros(3)}
    model("newton_info", given, norms)
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
    loaded = solver.Model(str(tmp_path / "m.pt"), str(native_library.build() / "lib" / "libtorchferry.so"))
    outputs = {"x": np.zeros(2), "y": np.zeros(2)}
    loaded("forward", {"x~1": np.array([0.01, 1.0]), "dt": np.array([1.0, 1.0])}, outputs)
    assert np.isnan(outputs["y"]).tolist() == [True, False]


class Hiding(nn.Module):
    signature = Signature.of({"x": (), "E": ()}, {"stress": ()})

    def forward(self, x, E):
        return torch.where(x > 0, E * x, 0.0 * E)


class Remembering(nn.Module):
    """The first call is another one than those behind it."""

    signature = Signature.of({"x": ()}, {"y": ()})

    def __init__(self):
        super().__init__()
        self.called = False

    def forward(self, x):
        y = x if self.called else 2 * x
        self.called = True
        return y


def test_hidden_state_beside_an_update(tmp_path):
    """Nothing of ours calls the model before the gate does."""
    model = torchferry.ComposedModel([update(), Remembering()])
    model.__dict__["example_inputs"] = update().__dict__["example_inputs"]
    with pytest.raises(CaptureError, match="hidden state"):
        torchferry.export(model, output=tmp_path / "m.pt")


@pytest.mark.usefixtures("without_the_gate")
def test_a_failure_that_the_model_hides(tmp_path):
    model = torchferry.ComposedModel([update(), Hiding()])
    model.__dict__["example_inputs"] = update().__dict__["example_inputs"] | {"E": torch.ones(12, dtype=F)}
    with pytest.raises(CaptureError, match=r"hides that 'update\.newton' has not converged"):
        torchferry.export(model, output=tmp_path / "m.pt")
    torchferry.export(model, output=tmp_path / "m.pt", on_failure="last")


def test_warmup_says_why_a_solve_fails(tmp_path):
    model = update(settings=torchferry.Settings(max_its=1))
    with pytest.raises(WarmupError, match=r"newton: the maximum number of iterations(.|\n)*max_its = 1"):
        torchferry.export(model, output=tmp_path / "m.pt")


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
    torch.testing.assert_close(x, cubic.solved(POINTS["x~1"], POINTS["dt"][:1].expand(3)), rtol=1e-12, atol=0)


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


@pytest.mark.usefixtures("without_the_gate")
def test_composed_with_others(tmp_path):
    """Behind one another, under names of their own; a history variable passes through."""
    second = torchferry.ImplicitUpdate(Second(), ["y"], name="second")
    model = torchferry.ComposedModel([update(name="first"), second, Stress()], additional_outputs=["x"])
    values = {**POINTS, "y~1": torch.ones(3, dtype=F), "E": torch.full((3,), 2.0, dtype=F)}
    (one,) = torchferry.export(model, output=tmp_path / "m.pt", inputs=values, derivatives="all")
    assert [s.path for s in one.contract.solvers] == ["first.newton", "second.newton"]
    loaded = torchferry.load(tmp_path / "m.pt")
    found = loaded.call("forward", {s.name: values[s.name] for s in one.contract.inputs})
    x = cubic.solved(POINTS["x~1"], POINTS["dt"])
    torch.testing.assert_close(found["stress"], 2 * x)
    torch.testing.assert_close(found["y"], cubic.solved(x, POINTS["dt"], 0.5))
    info = loaded.call("newton_info", {s.name: values[s.name] for s in one.contract.inputs})
    assert info["status"].shape == (3, 2)


def test_an_update_inside_a_residual(tmp_path):
    class Nested(nn.Module):
        signature = Decay.signature

        def __init__(self):
            super().__init__()
            self.inner = update()

        def forward(self, x, old, dt):
            return x - self.inner(old, dt)[0]

    with pytest.raises(UnsupportedError, match="part of the residual of another"):
        torchferry.export(update(Nested()), output=tmp_path / "m.pt")


class Borrowing(nn.Module):
    """Reads a parameter that another module has."""

    signature = Decay.signature

    def __init__(self, lender: Decay):
        super().__init__()
        self.__dict__["lender"] = lender

    def forward(self, x, old, dt):
        return self.__dict__["lender"](x, old, dt)


class Wrapped(nn.Module):
    signature = Signature.of({"x~1": (), "dt": ()}, {"x": ()})

    def __init__(self, call, residual=None):
        super().__init__()
        self.lender = Decay().requires_grad_(False)
        self.inner = update(residual(self.lender) if residual else None)
        self.call = call

    def forward(self, old, dt):
        return self.call(self.inner, old, dt)


def once(model, x, dt):
    return model(x, dt)[0]


def twice(model, x, dt):
    return model(model(x, dt)[0], dt)[0]


def points(model, x, dt):
    return model(x[:, None].expand(-1, 4), dt[:, None])[0].sum(-1)


@pytest.mark.usefixtures("without_the_gate")
@pytest.mark.parametrize(
    ("call", "residual", "message"),
    [
        (twice, None, "called more than once"),
        (points, None, "another batch than the model"),
        (once, Borrowing, "reads a parameter that is not its own"),
    ],
)
def test_updates_that_a_file_cannot_hold(tmp_path, call, residual, message):
    values = {n: v + 0.1 * torch.arange(3) for n, v in POINTS.items()}
    with pytest.raises(torchferry.TorchferryError, match=message):
        torchferry.export(Wrapped(call, residual), inputs=values, output=tmp_path / "m.pt")


@pytest.mark.usefixtures("without_the_gate")
def test_the_last_iterate_has_no_tangent(tmp_path):
    with pytest.raises(UsageError, match="a tangent like any other"):
        torchferry.export(update(), output=tmp_path / "m.pt", on_failure="last", derivatives="all")


class TwoRoots(nn.Module):
    """At ``old``, and a hundredth above it."""

    signature = Signature.of({"x": (), "old": ()}, {"x_residual": ()})

    def forward(self, x, old):
        return 100 * (x - old) * (x - old - 0.01)


class Leaking(nn.Module):
    """Sees the first guess, and keeps that from autograd."""

    signature = Signature.of({"x": (), "start": ()}, {"y": ()})

    def __init__(self, much):
        super().__init__()
        self.much = much

    def forward(self, x, start):
        return x + self.much * start.detach()


def guessed(*behind):
    predictor = Part(nn.Identity(), {"start": ()}, {"x": ()})
    model = torchferry.ComposedModel([torchferry.ImplicitUpdate(TwoRoots(), ["x"], predictor=predictor), *behind])
    old = torch.linspace(0.5, 1.5, 12, dtype=F)
    model.__dict__["example_inputs"] = {"old": old, "start": old.clone()}
    return model


@pytest.mark.usefixtures("without_the_gate")
def test_another_solution_from_another_first_guess_is_said(tmp_path):
    (one,) = torchferry.export(guessed(), output=tmp_path / "m.pt", derivatives="all")
    said = [c.detail for c in one.report.checks if c.check == "structural zeros"]
    assert any("another solution is found" in detail for detail in said), said


@pytest.mark.usefixtures("without_the_gate")
@pytest.mark.parametrize("much", [1e-4, 1e-7])
def test_an_output_that_does_see_the_first_guess(tmp_path, much):
    """Also where it is so little that the smallest step does not show it."""
    with pytest.raises(MismatchError, match="structural zeros"):
        torchferry.export(guessed(Leaking(much)), output=tmp_path / "m.pt", derivatives="all")


class Branching(Decay):
    def forward(self, x, old, dt):
        return super().forward(x, old, dt) if x.max() < 100 else x - old


class Counting(Decay):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x, old, dt):
        self.calls += 1
        return super().forward(x, old, dt) * (1.0 + 1e-9 * self.calls)


@pytest.mark.parametrize(("kind", "check"), [(Branching, "data read"), (Counting, "hidden state")])
def test_a_residual_is_judged_as_a_model_of_its_own(tmp_path, kind, check):
    with pytest.raises(torchferry.UnsoundError) as caught:
        torchferry.export(update(kind()), output=tmp_path / "m.pt")
    assert caught.value.details["check"] == check
    assert caught.value.details["where"].startswith(__file__)


def other_settings(loop, **settings):
    made = copy.copy(loop)
    others = {n: nn.Parameter(torch.tensor(v), requires_grad=False) for n, v in settings.items()}
    made._parameters = {**loop._parameters, **others}
    return made


def planted(monkeypatch, fault):
    """In what becomes of the file, and not in eager mode."""
    graph_of, scripted = implicit.graph_of, implicit.Captured.scripted

    def graph(function, taken, path):
        def residual(u, held):
            found = function(u, held)
            return (found[0], found[1] + 1e-6) if isinstance(found, tuple) else found + 1e-6

        def stale(u, held):
            found = function(u, held)
            return (function(taken[0], taken[1])[0].mean(0).expand(found[0].shape), found[1])

        if fault == "jacobian":
            return graph_of(stale if function.__name__ == "jacobian" else function, taken, path)
        return graph_of(residual if fault == "residual" else function, taken, path)

    def compiled(self):
        settings = {"cap": {"max_its": 3}, "early": {"rel_tol": 1e-2}}.get(fault, {})
        return scripted(dataclasses.replace(self, loop=other_settings(self.loop, **settings)))

    monkeypatch.setattr(implicit, "graph_of", graph)
    monkeypatch.setattr(implicit.Captured, "scripted", compiled)


@pytest.mark.usefixtures("without_the_gate")
@pytest.mark.parametrize("fault", ["residual", "jacobian", "cap", "early"])
def test_planted_faults(tmp_path, monkeypatch, fault):
    planted(monkeypatch, fault)
    with pytest.raises(CaptureError, match=r"not solved as in eager mode|is not its own"):
        torchferry.export(update(), output=tmp_path / "m.pt")
    # The file itself, held against eager mode.
    monkeypatch.setattr(implicit, "hold", lambda *_: None)
    monkeypatch.setattr(implicit, "refuse_borrowed", lambda *_: None)
    monkeypatch.setattr(implicit, "standing_in", lambda _: contextlib.nullcontext())
    with pytest.raises(MismatchError) as caught:
        torchferry.export(update(), output=tmp_path / "m.pt")
    assert "stored cases" in caught.value.details["where"]
    assert not (tmp_path / "m.pt").exists()

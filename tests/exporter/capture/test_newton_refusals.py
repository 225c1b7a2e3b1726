"""Implicit updates that a file cannot hold, and faults planted into files that hold one."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import os
import signal

import pytest
import torch
from cubic_models import POINTS, Decay, F, update
from project import mark_rest_thorough
from torch import nn

import torchferry
from exporter.capture import newton_capture
from exporter.common.errors import CaptureError, MismatchError, UnsupportedError, UsageError, WarmupError
from exporter.soundness import checked_capture

Part, Signature = torchferry.Part, torchferry.Signature


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


class Twice(nn.Module):
    """Two equations for the first unknown, and none for the second."""

    signature = Signature.of({"x": (2,), "g": (2,)}, {"x_residual": (2,)})

    def forward(self, x, g):
        return x[:, :1] - g


def test_a_system_that_is_singular_whatever_its_numbers(tmp_path):
    with pytest.raises(WarmupError, match=r"newton: the Jacobian is singular"):
        torchferry.export(torchferry.ImplicitUpdate(Twice(), ["x"]), output=tmp_path / "m.pt")


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


def test_autograd_does_not_go_through_a_newton_loop(tmp_path):
    with pytest.raises(UsageError, match="does not go through a Newton loop") as caught:
        torchferry.export(update(), output=tmp_path / "m.pt", differentiable=True)
    assert "--derivative" in str(caught.value)
    assert not list(tmp_path.iterdir())


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
    (exported,) = torchferry.export(guessed(), output=tmp_path / "m.pt", derivatives="all")
    message = [c.detail for c in exported.report.checks if c.check == "structural zeros"]
    assert any("another solution is found" in detail for detail in message), message


@pytest.mark.usefixtures("without_the_gate")
@pytest.mark.parametrize("much", mark_rest_thorough([1e-7], [1e-4]))
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


class OtherAtFirst(Decay):
    """Another residual in the very first call."""

    def __init__(self):
        super().__init__()
        self.called = False

    def forward(self, x, old, dt):
        residual = super().forward(x, old, dt)
        factor = 1.0 if self.called else 2.0
        self.called = True
        return factor * residual


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize(
    ("kind", "check"), [(Branching, "data read"), (Counting, "hidden state"), (OtherAtFirst, "hidden state")]
)
def test_a_residual_is_judged_as_a_model_of_its_own(tmp_path, kind, check, jobs):
    """Also where its solver cannot be captured, as of a branch on data."""
    with pytest.raises(torchferry.UnsoundError) as caught:
        torchferry.export(update(kind()), output=tmp_path / "m.pt", jobs=jobs)
    assert caught.value.details["check"] == check
    assert caught.value.details["where"].startswith(__file__)
    assert [f.check for f in caught.value.findings if f.severity == "unsound"] == [check]


class Caching(Decay):
    """What the first call makes is kept."""

    def __init__(self):
        super().__init__()
        self.cache = None

    def forward(self, x, old, dt):
        if self.cache is None:
            self.cache = x.new_ones(())
        return self.cache * super().forward(x, old, dt)


@pytest.mark.thorough
@pytest.mark.parametrize("jobs", [1, 2])
def test_what_a_residual_keeps_from_its_first_call_has_numbers(tmp_path, jobs):
    model = update(Caching())
    torchferry.check(model, jobs=jobs)
    caches = [m.cache for m in model.modules() if isinstance(m, Caching)]
    assert [c is None or float(c) for c in caches] == [1.0] * len(caches)


def test_a_capture_that_fails_beside_checks_that_pass(monkeypatch):
    def fail(*_):
        raise RuntimeError("planted")

    monkeypatch.setattr(newton_capture, "capture_solver", fail)
    for jobs in (1, 2):
        with pytest.raises(RuntimeError, match="planted"):
            torchferry.check(update(), jobs=jobs)
    # What the checks say explains more.
    with pytest.raises(torchferry.UnsoundError, match="data"):
        torchferry.check(update(Branching()), jobs=2)


def test_checks_whose_process_ends_are_not_taken_as_passed(monkeypatch):
    monkeypatch.setattr(checked_capture, "_check_residual", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(CaptureError, match=r"the checks of 'newton\.residual' ended early(.|\n)*killed"):
        torchferry.check(update(), jobs=2)


def other_settings(loop, **settings):
    result = copy.copy(loop)
    others = {n: nn.Parameter(torch.tensor(v), requires_grad=False) for n, v in settings.items()}
    result._parameters = {**loop._parameters, **others}
    return result


def planted(monkeypatch, fault):
    """In what becomes of the file, and not in eager mode."""
    graph_of, scripted = newton_capture.trace_loop_graph, newton_capture.CapturedLoop.script

    def graph(function, taken, batched, path, named):
        def residual(u, constants):
            result = function(u, constants)
            return (result[0], result[1] + 1e-6) if isinstance(result, tuple) else result + 1e-6

        def stale(u, constants):
            result = function(u, constants)
            return (function(taken[0], taken[1])[0].mean(0).expand(result[0].shape), result[1])

        if fault == "jacobian":
            return graph_of(stale if function.__name__ == "jacobian" else function, taken, batched, path, named)
        return graph_of(residual if fault == "residual" else function, taken, batched, path, named)

    def compiled(self):
        settings = {"cap": {"max_its": 3}, "early": {"rel_tol": 1e-2}}.get(fault, {})
        return scripted(dataclasses.replace(self, loop=other_settings(self.loop, **settings)))

    monkeypatch.setattr(newton_capture, "trace_loop_graph", graph)
    monkeypatch.setattr(newton_capture.CapturedLoop, "script", compiled)


@pytest.mark.usefixtures("without_the_gate")
@pytest.mark.parametrize("fault", mark_rest_thorough(["residual", "early"], ["jacobian", "cap"]))
def test_planted_faults(tmp_path, monkeypatch, fault):
    planted(monkeypatch, fault)
    with pytest.raises(CaptureError, match=r"not solved as in eager mode|is not its own"):
        torchferry.export(update(), output=tmp_path / "m.pt")
    # The file itself, held against eager mode.
    monkeypatch.setattr(newton_capture, "check_solver", lambda *_: None)
    monkeypatch.setattr(newton_capture, "check_own_parameters", lambda *_: None)
    monkeypatch.setattr(newton_capture, "replace_loops", lambda _: contextlib.nullcontext())
    with pytest.raises(MismatchError) as caught:
        torchferry.export(update(), output=tmp_path / "m.pt")
    assert "stored cases" in caught.value.details["where"]
    assert not (tmp_path / "m.pt").exists()

"""Parameters by element: exported files against modules that have one element's values each."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from torch import nn

import torchferry
from exporter.archive import pt_archive
from exporter.common.errors import CaptureError, UsageError, WarmupError
from exporter.model.eager import per_element
from exporter.model.eager.per_element import PerElementCall
from exporter.model.implicit.newton_solver import NewtonSolver
from torchferry import ImplicitUpdate, Sampling, Signature, TensorSpec
from torchferry.cli.app import run

F = torch.float64


class Spring(nn.Module):
    signature = Signature.of({"x": (3,)}, {"f": (3,)})

    def __init__(self) -> None:
        super().__init__()
        self.k, self.w = nn.Parameter(torch.tensor(2.0, dtype=F)), nn.Parameter(torch.arange(1.0, 4.0, dtype=F))
        self.count = nn.Parameter(torch.tensor(3), requires_grad=False)

    def forward(self, x):
        return self.k * x * x + self.w * x


class Linear(Spring):
    def forward(self, x):
        return nn.functional.linear(x, torch.diag(self.w)) + self.k * x


class Branch(Spring):
    def forward(self, x):
        return self.k * x if self.k > 1 else x


class Taken(nn.Module):
    signature = Signature.of({"x": (3,), "k": ()}, {"f": (3,)})

    def __init__(self) -> None:
        super().__init__()
        self.k = nn.Parameter(torch.tensor(2.0, dtype=F))

    def forward(self, x, k):
        return self.k * x + k.unsqueeze(-1)


class Whole(Spring):
    signature = Signature.of({"x": ("n", 3)}, {"f": ("n", 3)})


class Unstable(Spring):
    """Finite for the parameter's own value only."""

    def forward(self, x):
        return torch.sqrt(2.0 - self.k) + self.w * x


class EndsInABatch(Spring):
    def forward(self, x):
        if self.k.ndim:
            os._exit(3)
        return self.k * x


class Residual(nn.Module):
    """``a (u - u~1) + b u = g``: the closed form is ``(a u~1 + g) / (a + b)``."""

    signature = Signature.of({"u": (), "u~1": (), "g": ()}, {"u_residual": ()})

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = (nn.Parameter(torch.tensor(value, dtype=F)) for value in (1.5, 0.5))

    def forward(self, u, before, g):
        # A root that takes some elements more steps than others: cubic in u, with b u of the linear model.
        return (self.a * (u - before) + self.b * u - g) * (1 + (u - (self.a * before + g) / (self.a + self.b)) ** 2)


def make_update() -> nn.Module:
    return ImplicitUpdate(Residual(), ["u"])


@pytest.fixture(scope="module")
def spring(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("spring") / "spring.pt"
    torchferry.export(Spring(), output=path, per_element=["k", "w"], derivatives="all")
    return path


def test_each_element_has_its_own_values(spring):
    model = torchferry.load(spring)
    assert model.contract.per_element == ("k", "w")
    assert [p.name for p in model.contract.parameters] == ["count"]
    x, k, w = (torch.rand(shape, dtype=F) for shape in ((11, 3), (11,), (11, 3)))
    assert torch.equal(model(x, k, w)[0], k.unsqueeze(-1) * x * x + w * x)
    results = model.call("jacobian", {"x": x, "k": k, "w": w})
    assert torch.allclose(results["d f / d k"], x * x, rtol=1e-13)
    assert torch.allclose(results["d f / d w"], torch.diag_embed(x), rtol=1e-13)


GLOBAL = Spring()


def make_the_same() -> nn.Module:
    return GLOBAL


@pytest.mark.thorough
@pytest.mark.parametrize("source", [GLOBAL, make_the_same])
def test_the_users_module_stays_as_it_was(tmp_path, source):
    torchferry.export(source, output=tmp_path / "a.pt", per_element="k")
    torchferry.check(source, per_element="k")
    with pytest.raises(UsageError):
        torchferry.export(source, output=tmp_path / "a.pt", per_element="k", derivatives="f:k", symmetric="f:w")
    with pytest.raises(UsageError, match="solves nothing"):
        torchferry.export(source, output=tmp_path / "a.pt", per_element="k", on_failure="last")
    assert [name for name, _ in GLOBAL.named_parameters()] == ["k", "w", "count"]
    assert not list(GLOBAL.buffers())
    torchferry.export(source, output=tmp_path / "b.pt")
    contract = torchferry.load(tmp_path / "b.pt").contract
    assert contract.per_element == ()
    assert [p.name for p in contract.parameters] == ["k", "w", "count"]


class HeldTwice(Spring):
    def __init__(self) -> None:
        super().__init__()
        self.all = [self.k]

    def forward(self, x):
        return self.k * x + self.all[0] * x


class Mean(Spring):
    def forward(self, x):
        return self.k.mean() * x


class TakesGradients(nn.Module):
    signature = Signature.of({"x": (3,)}, {"f": (3,)})

    def __init__(self) -> None:
        super().__init__()
        self.k = nn.Parameter(torch.tensor(2.0, dtype=F))

    def forward(self, x):
        x = x.detach().requires_grad_(True)
        energy = (self.k[..., None] * x.square() / 2).sum()
        return torch.autograd.grad(energy, x)[0]


def test_a_model_that_takes_gradients(tmp_path):
    torchferry.export(TakesGradients(), output=tmp_path / "g.pt", per_element="k")
    x, k = torch.rand(5, 3, dtype=F), torch.rand(5, dtype=F)
    assert torch.allclose(torchferry.load(tmp_path / "g.pt")(x, k)[0], k[:, None] * x)


def test_how_inputs_are_drawn_stays(tmp_path):
    module = Spring()
    module.signature = Signature.of({"x": TensorSpec("x", (3,), sampling=Sampling("uniform", 5.0, 9.0))}, {"f": (3,)})
    torchferry.export(module, output=tmp_path / "a.pt", per_element="k")
    x, k = torchferry.load(tmp_path / "a.pt").contract.inputs
    assert (x.sampling.kind, x.sampling.low, x.sampling.high) == ("uniform", 5.0, 9.0)
    assert 1.5 < k.sampling.low < 2.0 < k.sampling.high < 2.5


@pytest.mark.thorough
@pytest.mark.parametrize("pattern", ["*", "residual.a"])
def test_each_element_of_an_update_is_solved_with_its_own(tmp_path, pattern):
    formats = "pt,c" if pattern == "*" else "pt"
    (result,) = torchferry.export(
        make_update(), output=tmp_path / "u.pt", per_element=[pattern], derivatives="u:*", formats=formats
    )
    model = torchferry.load(result.path)
    # More than one slice of the solver.
    before, g, a, b = (0.5 + torch.rand(5000, dtype=F) for _ in range(4))
    own = (a, b) if pattern == "*" else (a,)
    b = b if pattern == "*" else torch.tensor(0.5, dtype=F)
    u = model(before, g, *own)[0]
    assert torch.allclose(u, (a * before + g) / (a + b), rtol=1e-9)
    inputs = dict(zip((s.name for s in model.contract.inputs), (before, g, *own), strict=True))
    slope = model.call("jacobian", inputs)["d u / d residual.a"]
    assert torch.allclose(slope, (before - u) / (a + b), rtol=1e-7)


def test_values_may_be_given(tmp_path):
    x = torch.rand(4, 3, dtype=F)
    inputs = {"x": x, "k": torch.tensor([1.0, 20.0, 300.0, 4000.0], dtype=F), "w": torch.ones(3, dtype=F)}
    torchferry.export(Spring(), output=tmp_path / "a.pt", inputs=inputs, per_element=["k", "w"])
    case = next(case for case in pt_archive.read(tmp_path / "a.pt").cases() if case.name == "warmup")
    assert torch.equal(case.inputs[1], inputs["k"])
    assert torch.equal(case.inputs[2], torch.ones(4, 3, dtype=F))


def test_what_the_command_line_says(tmp_path, capfd):
    (tmp_path / "spring.py").write_text(
        "import torch\nfrom torch import nn\nfrom torchferry import Signature\n\n"
        "class Spring(nn.Module):\n    signature = Signature.of({'x': (3,)}, {'f': (3,)})\n\n"
        "    def __init__(self):\n        super().__init__()\n"
        "        self.k = nn.Parameter(torch.tensor(2.0).double())\n\n"
        "    def forward(self, x):\n        return self.k * x\n"
    )
    source, output = f"{tmp_path / 'spring.py'}:Spring", tmp_path / "s.pt"
    assert run(["check", source, "--per-element", "k"]) == 0
    capfd.readouterr()
    assert run(["export", source, "--per-element", "k", "-o", str(output), "--json"]) == 0
    findings = json.loads(capfd.readouterr().out)[0]["findings"]
    assert any(f["check"] == "per element" and "'k', 2" in f["what"] for f in findings)
    assert run(["inspect", str(output)]) == 0
    assert "Parameters by element, which are inputs: k" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("module", "parameters", "inputs", "error", "text"),
    [
        (Spring, "q", None, UsageError, "no parameter matches 'q'"),
        (Spring, "count", None, UsageError, "int64"),
        (Spring, "x", None, UsageError, "no parameter matches 'x'"),
        (HeldTwice, "k", None, CaptureError, "another 'f' in a batch"),
        (Mean, "k", {"x": torch.ones(1, 3, dtype=F)}, CaptureError, "another 'f' in a batch"),
        (Taken, "k", None, UsageError, "there is an input 'k'"),
        (Whole, "k", None, UsageError, "whose shapes are whole"),
        (Spring, "k", {"x": torch.rand(4, 3, dtype=F), "k": torch.rand(3, dtype=F)}, UsageError, r"\[4\]"),
        (Branch, "k", None, CaptureError, f":{Branch.forward.__code__.co_firstlineno + 1}"),
        (Linear, "w", None, CaptureError, f":{Linear.forward.__code__.co_firstlineno + 1}"),
    ],
)
def test_what_cannot_have_a_batch(tmp_path, module, parameters, inputs, error, text):
    with pytest.raises(error, match=text):
        torchferry.export(module(), output=tmp_path / "a.pt", inputs=inputs, per_element=parameters.split())
    assert not list(tmp_path.iterdir())


def test_a_model_that_bears_no_other_value(tmp_path):
    (result,) = torchferry.export(Unstable(), output=tmp_path / "a.pt", per_element="k")
    assert result.contract.inputs[1].sampling.low == result.contract.inputs[1].sampling.high == 2.0
    inputs = {"x": torch.rand(2, 3, dtype=F), "k": torch.tensor([1.0, 3.0], dtype=F)}
    with pytest.raises(WarmupError, match="no finite outputs with these parameters"):
        torchferry.export(Unstable(), output=tmp_path / "b.pt", per_element="k", inputs=inputs)
    assert not (tmp_path / "b.pt").exists()


def test_values_of_another_element_are_seen(tmp_path, monkeypatch):
    """Planted: each element gets the parameter of the one before, in eager mode and in the file alike."""
    call = PerElementCall.__call__

    def shifted(self, *tensors):
        count = len(tensors) - len(self.places)
        return call(self, *tensors[:count], *(t.roll(1, 0) for t in tensors[count:]))

    monkeypatch.setattr(PerElementCall, "__call__", shifted)
    with pytest.raises(CaptureError, match="another 'f' in a batch") as caught:
        torchferry.export(Spring(), output=tmp_path / "a.pt", per_element="k")
    assert caught.value.details["check"] == per_element.CHECK


def test_a_loop_that_mixes_elements_is_seen(tmp_path, monkeypatch):
    """Planted: the solver gathers the parameter of another element."""
    solve = NewtonSolver.solve

    def mix(self, u, args, tangents):
        return solve(
            self, u, [*args[: self.batched - 1], args[self.batched - 1].roll(1, 0), *args[self.batched :]], tangents
        )

    monkeypatch.setattr(NewtonSolver, "solve", mix)
    with pytest.raises(CaptureError, match="another 'u' in a batch"):
        torchferry.export(make_update(), output=tmp_path / "a.pt", per_element="residual.a")


def test_a_model_that_ends_its_process(tmp_path):
    with pytest.raises(CaptureError, match="does not run with these parameters"):
        torchferry.export(EndsInABatch(), output=tmp_path / "a.pt", per_element="k")

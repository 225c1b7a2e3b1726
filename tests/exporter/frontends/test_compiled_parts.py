"""Models in Python with parts that are TorchScript already."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from foreign_files import Counter, Nameless, Potential
from torch import nn

import torchferry
from exporter.common.errors import CaptureError, SourceError, TorchferryError, UnsoundError
from exporter.common.torch_hooks import ignore_deprecations
from exporter.frontends.compiled_parts import replace_compiled_parts
from exporter.model import compiled_model

F = torch.float64
X = torch.linspace(-1, 1.2, 12, dtype=F).reshape(4, 3)


class Branching(nn.Module):
    """Takes the way that its numbers say, so a trace alone would keep one."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 3, dtype=F, generator=torch.Generator().manual_seed(0)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool(x.sum() > 0):
            return x @ self.weight
        return torch.tanh(x) - 1


class Layered(nn.Module):
    """Library code around a part that the library compiled; ``count`` calls of it."""

    def __init__(self, part: nn.Module, count: int = 1):
        super().__init__()
        with ignore_deprecations():
            self.part = torch.jit.script(part)
            self.traced: Any = torch.jit.trace(nn.Linear(3, 3).double(), X)
        self.again = self.part
        self.last = nn.Linear(3, 2).double()
        self.count = count

    def forward(self, x):
        for _ in range(self.count):
            x = self.again(self.part(x))
        return self.last(self.traced(x))


def export(model, path, **options):
    torchferry.export(model, inputs={"x": X}, output=path, jobs=1, **options)
    return torchferry.load(path)


@pytest.mark.parametrize("count", [1, 9])
def test_both_ways_of_a_part_are_in_the_file(tmp_path, count):
    model = Layered(Branching(), count)
    exported = export(model, tmp_path / "m.pt", batch="no")
    for x in (X + 1, X - 1, X.flip(0)):
        torch.testing.assert_close(exported.call("forward", {"x": x})["output"], model(x), rtol=1e-13, atol=1e-13)
    # What the user holds is as it was.
    assert isinstance(model.part, torch.jit.ScriptModule)
    assert model.again is model.part


def test_derivatives_by_inputs_and_by_parameters_of_a_part(tmp_path):
    model = nn.Sequential(
        torch.jit.script(nn.Linear(3, 2).double()), nn.Tanh(), torch.jit.script(nn.Linear(2, 2).double())
    )
    asked = {"derivatives": ["*:input", "*:0.weight"], "jvp": True, "vjp": True}
    torchferry.export(model, inputs={"input": X}, output=tmp_path / "m.pt", jobs=1, **asked)
    got = torchferry.load(tmp_path / "m.pt").call("jacobian", {"input": X})
    (wanted,) = torch.autograd.grad(model(X)[2, 1], [dict(model.named_parameters())["0.weight"]])
    torch.testing.assert_close(got["d output / d 0.weight"][2, 1], wanted, rtol=1e-12, atol=1e-13)


def test_a_part_that_takes_gradients(tmp_path):
    class Forces(nn.Module):
        def __init__(self):
            super().__init__()
            with ignore_deprecations():
                self.potential = torch.jit.script(Potential().double())

        def forward(self, x):
            return self.potential(x)

    r = X + 1
    got = export(Forces(), tmp_path / "m.pt", batch="no").call("forward", {"x": r})
    torch.testing.assert_close(got["forces"], -(4 * r + 4 * r**3), rtol=1e-13, atol=1e-13)


class Held(Layered):
    def __init__(self):
        super().__init__(nn.Tanh())
        self.lock = (i for i in range(3))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Layered(Counter()), UnsoundError, r"submodule 'part' changes its own attributes(.|\n)*'count'"),
        (lambda: Layered(Nameless()), SourceError, "submodule 'part' has nothing to call"),
        (Held, CaptureError, r"cannot be copied(.|\n)*generator"),
        (lambda: torch.jit.script(Branching()), CaptureError, "already TorchScript"),
    ],
)
def test_parts_that_are_refused(tmp_path, make, error, message):
    with ignore_deprecations(), pytest.raises(error, match=message):
        export(make(), tmp_path / "m.pt")
    assert not list(tmp_path.iterdir())


class Scaled(nn.Module):
    """Reads a number of a part: the part's code is captured, what else is there is not."""

    def __init__(self):
        super().__init__()
        part = nn.Tanh()
        part.scale = 3.0  # pyright: ignore[reportArgumentType]
        with ignore_deprecations():
            self.part = torch.jit.script(part)

    def forward(self, x):
        return self.part(x) * getattr(self.part, "scale", 1.0)


def test_numbers_read_from_a_part_are_seen(tmp_path):
    with pytest.raises(CaptureError, match=r"copy of model 'Scaled'.* gives other outputs"):
        export(Scaled(), tmp_path / "m.pt")


class Referring(nn.Module):
    """A function that refers to the model, which a copy does not replace."""

    def __init__(self):
        super().__init__()
        with ignore_deprecations():
            self.part = torch.jit.script(nn.Tanh())
        self.scale = lambda x: x * 2 if self.training else x

    def forward(self, x):
        return self.scale(self.part(x))


def test_the_model_itself_is_in_eval_mode(tmp_path):
    got = export(Referring(), tmp_path / "m.pt").call("forward", {"x": X})["output"]
    torch.testing.assert_close(got, torch.tanh(X), rtol=1e-13, atol=1e-13)


class Tied(nn.Module):
    """One layer, called in Python and in TorchScript."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3).double()
        with ignore_deprecations():
            self.part = torch.jit.script(self.layer)

    def forward(self, x):
        return torch.tanh(self.layer(x)) + self.part(x)


def test_a_parameter_of_two_parts_is_one(tmp_path):
    model = Tied()
    exported = export(model, tmp_path / "m.pt", derivatives=["*:layer.bias"])
    got = exported.call("jacobian", {"x": X})["d output / d layer.bias"]
    wanted = torch.func.jacrev(lambda b: torch.tanh(X @ model.layer.weight.T + b) + X @ model.layer.weight.T + b)(
        model.layer.bias
    )
    torch.testing.assert_close(got, wanted.detach(), rtol=1e-11, atol=1e-12)


class Optional(nn.Module):
    """Compiled from its source, with a call and an optional value of its own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor | None = None
        if bool(x.sum() > 1e3):
            y = helper(x)
        return x if y is None else y


def helper(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def test_a_part_beside_one_that_is_compiled_from_its_source(tmp_path):
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.marked = torchferry.mark(Optional(), jit="script")
            with ignore_deprecations():
                self.part = torch.jit.script(nn.Tanh())

        def forward(self, x):
            return self.part(self.marked(x))

    exported = export(Both(), tmp_path / "m.pt", batch="no")
    for x in (X, X + 1e3):
        torch.testing.assert_close(exported.call("forward", {"x": x})["output"], torch.tanh(x * (1 + (x.sum() > 1e3))))


def test_a_model_without_such_parts_is_itself():
    model = nn.Sequential(nn.Linear(3, 3))
    assert replace_compiled_parts(model, "here") is model


def test_a_part_whose_code_is_not_its_own_is_found(tmp_path, monkeypatch):
    """The control: a part that runs other code while it is captured than in eager mode."""
    run = compiled_model._Code.run

    def shift(code, *arguments):
        result = run(code, *arguments)
        return result + 1e-6 if torch._C._get_tracing_state() is not None else result

    monkeypatch.setattr(compiled_model._Code, "run", shift)
    with ignore_deprecations(), pytest.raises(TorchferryError):
        export(Layered(Branching()), tmp_path / "m.pt", batch="no")
    assert not list(tmp_path.iterdir())

"""Submodules that are compiled: their branches and loops on data are in the file, and the gate looks at the whole."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
from gate_specimens import findings_of
from project import load_module
from torch import nn

import torchferry
from exporter.capture.scripting import is_compilable, make_opaque
from exporter.common.errors import CaptureError, UnsoundError, UsageError
from exporter.frontends import python_factory

F = torch.float64


class Law(nn.Module):
    """Newton's method until every row has converged: a loop and a branch that data decide."""

    def __init__(self) -> None:
        super().__init__()
        self.exponent = nn.Parameter(torch.tensor(3.0, dtype=F))

    def forward(self, load: torch.Tensor) -> torch.Tensor:
        x = torch.ones_like(load)
        for _ in range(50):
            residual = x**self.exponent + x - load
            if bool((residual.abs() < 1e-12).all()):
                break
            x = x - residual / (self.exponent * x ** (self.exponent - 1) + 1)
        return x


class Model(nn.Module):
    def __init__(self, jit: str = "script") -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0, dtype=F))
        self.law = torchferry.mark(Law(), jit=jit)  # pyright: ignore[reportArgumentType]

    def forward(self, load: torch.Tensor) -> torch.Tensor:
        return self.law(load * self.scale).sqrt()


def examples():
    return {"load": torch.tensor([[1.0, 2.0], [3.0, 0.5]], dtype=F)}


def test_an_unmarked_loop_on_data_is_refused_and_says_what_to_mark():
    with pytest.raises(UnsoundError, match="submodule 'law'") as caught:
        findings_of(python_factory.source_from_module(Model("trace"), "m", examples(), "here"))
    assert caught.value.details["check"] == "data read"


def test_a_marked_one_is_exported_and_right_far_from_the_examples(tmp_path):
    model = Model()
    torchferry.export(model, inputs=examples(), output=tmp_path / "m.pt")
    loaded = load_module(tmp_path / "m.pt")
    assert {n for n, _ in loaded.named_parameters()} == {"scale", "law.exponent"}
    for factor in (1e-3, 1.0, 1e6):
        load = factor * torch.rand(40, 2, dtype=F)
        torch.testing.assert_close(loaded(load)[0], model(load), rtol=1e-13, atol=0)
    with torch.no_grad():
        dict(loaded.named_parameters())["law.exponent"].fill_(2.0)
        model.law.exponent.fill_(2.0)  # pyright: ignore[reportCallIssue, reportAttributeAccessIssue]
    torch.testing.assert_close(loaded(load)[0], model(load), rtol=1e-13, atol=0)


def test_the_gate_still_sees_what_is_around_a_marked_submodule():
    class Around(Model):
        def forward(self, load: torch.Tensor) -> torch.Tensor:
            x = self.law(load)
            return x if x.max() > 1 else 2 * x

    with pytest.raises(UnsoundError) as caught:
        findings_of(python_factory.source_from_module(Around(), "m", examples(), "here"))
    assert caught.value.details["check"] == "data read"


def test_hidden_state_in_a_marked_submodule_is_found():
    class Counting(Law):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros((), dtype=F))

        def forward(self, load: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return load * self.calls

    model = Model()
    model.law = torchferry.mark(Counting(), jit="script")
    with pytest.raises(UnsoundError, match=r"writes to buffer 'law\.calls'"):
        findings_of(python_factory.source_from_module(model, "m", examples(), "here"))


def test_what_torchscript_cannot_read_is_said():
    class Untyped(nn.Module):
        def forward(self, load):
            return load + len(globals())

    model = Model()
    model.law = torchferry.mark(Untyped(), jit="script")
    with pytest.raises(CaptureError, match="cannot compile it") as caught:
        findings_of(python_factory.source_from_module(model, "m", examples(), "here"))
    assert caught.value.details["check"] == "script"
    assert "test_scripting.py" in caught.value.details["where"]


class Around(nn.Module):
    """Calls a marked part by keywords, and reads the batch size."""

    def __init__(self, part: nn.Module, *, reads_size: bool = False) -> None:
        super().__init__()
        self.part = torchferry.mark(part, jit="script")
        self.reads_size = reads_size

    def forward(self, load: torch.Tensor) -> torch.Tensor:
        y = self.part(load, scale=3.0)
        return y + 1 if self.reads_size and load.shape[0] == 2048 else y


class Scaling(nn.Module):
    def forward(self, load: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
        if bool(load.sum() > 2):
            return load * torch.tensor(scale, dtype=torch.float64)
        return load


def add_one(module: nn.Module, inputs: tuple[torch.Tensor], output: torch.Tensor) -> torch.Tensor:
    return output + 1


def test_a_part_that_is_called_by_keywords_and_makes_constants(tmp_path):
    """What is around it is recorded all the same."""
    with pytest.raises(UnsoundError) as caught:
        findings_of(python_factory.source_from_module(Around(Scaling(), reads_size=True), "m", examples(), "here"))
    assert caught.value.details["check"] == "batch size"
    model = Around(Scaling())
    opaque = make_opaque(model.part, contextlib.nullcontext)
    load = examples()["load"]
    assert torch.equal(opaque(load, scale=5.0), 5 * load)
    (exported,) = torchferry.export(model, inputs=examples(), output=tmp_path / "m.pt", batch="no")
    assert not [f for f in exported.contract.findings if f.severity == "not run"]
    for load in (examples()["load"], -examples()["load"]):
        torch.testing.assert_close(load_module(tmp_path / "m.pt")(load)[0], model(load), rtol=0, atol=0)


@pytest.mark.parametrize("is_readable", [True, False])
def test_its_hooks_run_once(is_readable, tmp_path):
    """TorchScript could compile the one, too, and cannot read the other."""
    model = Model()
    if is_readable:
        model.law.register_forward_hook(add_one)
    else:
        model.law.register_forward_pre_hook(lambda module, inputs: (2 * inputs[0],))
    torchferry.export(model, inputs=examples(), output=tmp_path / "m.pt")
    load = 10 * torch.rand(7, 2, dtype=F)
    torch.testing.assert_close(load_module(tmp_path / "m.pt")(load)[0], model(load), rtol=1e-13, atol=0)


def test_a_refusal_says_why_a_part_cannot_be_compiled():
    """As it is now: a module may be mended between two exports."""

    class Box:
        threshold = 2.0

    class Choosing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.box: Any = Box()

        def take(self, load):
            return load if bool(load.sum() > 2) else load * self.box.threshold

        def forward(self, load: torch.Tensor) -> torch.Tensor:
            return self.take(load)

    model = Model("trace")
    model.law = law = Choosing()
    source = python_factory.source_from_module(model, "m", examples(), "here")
    assert not is_compilable(law)
    with pytest.raises(UnsoundError) as caught:
        findings_of(source)
    assert "cannot compile submodule 'law' as it is: " in caught.value.details["mend"]
    del law.box
    law.box = nn.Threshold(2.0, 0.0).eval()
    with pytest.raises(UnsoundError) as caught:
        findings_of(source)
    assert """torchferry.mark(..., jit="script") for submodule 'law'""" in caught.value.details["mend"]


@pytest.mark.thorough
def test_composed(tmp_path):
    law = torchferry.Part(Law(), inputs={"load": (2,)}, outputs={"x": (2,)}, name="law", jit="script")
    root = torchferry.Part(nn.ReLU(), inputs={"x": (2,)}, outputs={"y": (2,)}, name="root")
    model = torchferry.ComposedModel([law, root], name="both")
    torchferry.export(model, inputs=examples(), output=tmp_path / "m.pt")
    load = 1e4 * torch.rand(7, 2, dtype=F)
    torch.testing.assert_close(load_module(tmp_path / "m.pt")(load)[0], model(load)[0], rtol=1e-13, atol=0)
    law = torchferry.Part(Law(), inputs={"load": (2,)}, outputs={"x": (2,)}, name="law")
    by_name = torchferry.ComposedModel([law, root], jit={"law": "script"})
    findings_of(python_factory.source_from_module(by_name, "m", examples(), "here"))
    one_by_one = torchferry.ComposedModel([law, root], jit=False)
    message = [
        f.what
        for f in findings_of(python_factory.source_from_module(one_by_one, "m", examples(), "here"))
        if f.check == "script"
    ]
    assert message == [
        "submodule 'law.module' is compiled from its source",
        "submodule 'root.module' is compiled from its source",
    ]
    with pytest.raises(UsageError, match="did you mean 'law'"):
        torchferry.ComposedModel([law, root], jit={"lav": "script"})
    with pytest.raises(UsageError, match="'script' or 'trace'"):
        torchferry.mark(Law(), jit="compile")  # pyright: ignore[reportArgumentType]


def test_one_by_one_what_torchscript_cannot_read_is_traced():
    class Untyped(nn.Module):
        def forward(self, x):
            return x * len(self.__class__.__name__)

    law = torchferry.Part(Law(), inputs={"load": (2,)}, outputs={"x": (2,)}, name="law")
    tail = torchferry.Part(Untyped(), inputs={"x": (2,)}, outputs={"y": (2,)}, name="tail")
    model = torchferry.ComposedModel([law, tail], jit=False)
    message = [
        f.what
        for f in findings_of(python_factory.source_from_module(model, "m", examples(), "here"))
        if f.check == "script"
    ]
    assert message == ["submodule 'law.module' is compiled from its source"]

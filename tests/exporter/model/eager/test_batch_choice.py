"""Models without a signature: a batch, or whole shapes."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn

import torchferry
from exporter.common.errors import MismatchError, UnsoundError, UsageError
from exporter.frontends import python_factory
from exporter.model.eager.batch_choice import CHECK, ShapeChoice, choose_batch
from exporter.model.source import Source

F = torch.float64
EXAMPLES = {"x": torch.linspace(-1, 1, 15, dtype=F).reshape(5, 3), "weight": torch.ones(1, 3, dtype=F)}


class Scaled(nn.Module):
    def forward(self, x, weight):
        return {"y": x * weight}


class Loss(nn.Module):
    def forward(self, x, weight):
        return {"loss": (x * weight).square().sum(), "y": x * weight}


class Gradient(nn.Module):
    """It takes a gradient itself: a run without autograd fails."""

    def forward(self, x, weight):
        x = x.detach().requires_grad_()
        loss = (x * weight).square().sum()
        return {"loss": loss, "slope": torch.autograd.grad(loss, x, create_graph=True)[0]}


class Declared(Scaled):
    signature = torchferry.Signature.of({"x": (3,), "weight": (3,)}, {"y": (3,)})


class DeclaredWhole(Loss):
    signature = torchferry.Signature.of({"x": (5, 3), "weight": (1, 3)}, {"loss": (), "y": (5, 3)}, batch_ndim=0)


def make_source(model: nn.Module, examples=None) -> Source:
    return python_factory.source_from_module(model, "m", examples or EXAMPLES, "the test")


def test_outputs_decide():
    """A model whose outputs have the batch keeps it: the control of one that has an output without."""
    batched = choose_batch(make_source(Scaled()), ShapeChoice("auto"), 0)
    assert (batched.batch_ndim, batched.findings) == (1, ())
    whole = choose_batch(make_source(Loss()), ShapeChoice("auto"), 0)
    assert whole.batch_ndim == 0
    assert [spec.shape for spec in whole.inputs] == [(5, 3), (1, 3)]
    assert all(map(torch.equal, whole.calls[0], EXAMPLES.values()))
    (finding,) = whole.findings
    assert (finding.check, finding.severity) == (CHECK, "sound")
    assert "output 'loss'" in finding.reason
    assert "does not carry the batch: shape [] at batch" in finding.reason


def test_it_is_as_asked_for():
    assert choose_batch(make_source(Scaled()), ShapeChoice("no"), 0).batch_ndim == 0
    assert choose_batch(make_source(Loss()), ShapeChoice("yes"), 0).batch_ndim == 1


@pytest.mark.parametrize(("model", "choice"), [(Declared(), "yes"), (DeclaredWhole(), "no")])
def test_what_a_signature_says_can_be_asked_for(model, choice):
    source = make_source(model)
    assert choose_batch(source, ShapeChoice(choice), 0) is source is choose_batch(source, ShapeChoice("auto"), 0)


@pytest.mark.parametrize(
    ("model", "examples", "choice", "message"),
    [
        (Declared(), None, "no", "says itself that it has a batch(.|\n)*mend: change the batch_ndim"),
        (DeclaredWhole(), None, "yes", "says itself that it has whole shapes"),
        (Scaled(), {**EXAMPLES, "weight": torch.ones(2, 3, dtype=F)}, "yes", "no batch(.|\n)*'x': 5, 'weight': 2"),
        (Scaled(), None, "maybe", "unknown choice(.|\n)*expected: auto, yes, no"),
    ],
)
def test_what_cannot_be_asked_for(model, examples, choice, message):
    with pytest.raises(UsageError, match=message):
        choose_batch(make_source(model, examples), ShapeChoice(choice), 0)


def test_an_input_file_says_that_there_is_a_batch():
    source = make_source(Declared())
    source = dataclasses.replace(source, origin=dataclasses.replace(source.origin, kind="neml2"))
    with pytest.raises(UsageError, match="models of input files have a batch"):
        choose_batch(source, ShapeChoice("no"), 0)


@pytest.mark.parametrize("model", [Loss(), Gradient()], ids=["loss", "gradient"])
def test_a_file_of_whole_shapes(model, tmp_path):
    (exported,) = torchferry.export(model, inputs=EXAMPLES, output=tmp_path / "m.pt")
    assert exported.contract.batch.ndim == 0
    assert [f.reason for f in exported.contract.findings if f.check == CHECK]
    x = torch.randn(5, 3, dtype=F)
    result = torchferry.load(exported.path).call("forward", {"x": x, "weight": EXAMPLES["weight"]})
    torch.testing.assert_close(result["loss"], x.square().sum())


def test_a_size_that_decides_is_one_of_whole_shapes(tmp_path):
    class BySize(nn.Module):
        def forward(self, x):
            return {"y": x * 2 if x.shape[0] == 5 else x}

    examples = {"x": EXAMPLES["x"]}
    with pytest.raises(UnsoundError, match=r"batch size is read(.|\n)*--batch no"):
        torchferry.export(BySize(), inputs=examples, output=tmp_path / "m.pt")
    (exported,) = torchferry.export(BySize(), inputs=examples, output=tmp_path / "m.pt", batch="no")
    assert torch.equal(torchferry.load(exported.path).call("forward", examples)["y"], 2 * examples["x"])


def test_rows_that_depend_on_each_other_are_no_batch(tmp_path):
    """An output that has the leading size looks like a batch; the checks find that it is none."""

    class Centred(nn.Module):
        def forward(self, x):
            return {"y": x - x.mean(0)}

    examples = {"x": EXAMPLES["x"]}
    with pytest.raises(MismatchError, match=r"depend on each other(.|\n)*--batch no"):
        torchferry.export(Centred(), inputs=examples, output=tmp_path / "m.pt")
    (exported,) = torchferry.export(Centred(), inputs=examples, output=tmp_path / "m.pt", batch="no")
    assert exported.contract.batch.ndim == 0

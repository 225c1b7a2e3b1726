"""Open sizes that are found by trying, of models whose shapes nobody has declared."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn

import torchferry
from exporter.capture import open_sizes
from exporter.capture.open_sizes import choose_sizes, fix_sizes
from exporter.common.errors import CaptureError, MismatchError, OperatorError, UnsoundError, UsageError
from exporter.common.forking import ForkFailedError
from exporter.frontends import python_factory
from exporter.model.eager.batch_choice import ShapeChoice, choose_batch
from exporter.model.eager.dynamic_sizes import OPEN_SIZES
from exporter.model.source import Source
from torchferry.sources import load_model

F = torch.float64


class Call(nn.Module):
    """A model of one expression."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function = function
        self.linear = nn.Linear(4, 4).to(F)

    def forward(self, x, y=None):
        result = self.function(self, x, y)
        return result if isinstance(result, dict) else {"out": result}


def rows(*shape: int) -> torch.Tensor:
    return torch.linspace(0.1, 1.1, torch.Size(shape).numel(), dtype=F).reshape(shape)


def find(function, choice: ShapeChoice | None = None, **examples: torch.Tensor) -> Source:
    source = python_factory.source_from_module(Call(function), "m", examples, "the test")
    return choose_sizes(choose_batch(source, ShapeChoice("no"), 0), choice or ShapeChoice(), 0)


def explain(source: Source, axis: str) -> str:
    (reason,) = [f.reason for f in source.findings if f.check == OPEN_SIZES and f.what == f"{axis} is fixed"]
    return reason


@pytest.mark.parametrize(
    ("function", "examples", "shapes"),
    [
        (lambda m, x, y: x * 2, {"x": rows(5, 3)}, [("x_0", "x_1")]),
        (lambda m, x, y: m.linear(x), {"x": rows(5, 4)}, [("x_0", 4)]),
        (lambda m, x, y: x + y, {"x": rows(5, 3), "y": rows(3)}, [("x_0", "x_1"), ("x_1",)]),
        (lambda m, x, y: x + y, {"x": rows(4, 4), "y": rows(4, 4)}, [("x_0", "x_1"), ("x_0", "x_1")]),
        (lambda m, x, y: x @ y, {"x": rows(5, 5), "y": rows(5, 5)}, [("x_0", "x_1"), ("x_1", "y_1")]),
        (lambda m, x, y: {"a": x.sum(), "b": y * 2}, {"x": rows(5), "y": rows(5)}, [("x_0",), ("y_0",)]),
        (lambda m, x, y: x * y, {"x": rows(5, 3), "y": rows(1, 3)}, [("x_0", "x_1"), (1, "x_1")]),
        (lambda m, x, y: m.linear(x.mean((0, 1))), {"x": rows(3, 4, 4)}, [("x_0", "x_1", 4)]),
    ],
    ids=["rows", "linear", "right", "square", "product", "independent", "one", "equal"],
)
def test_sizes_are_open_where_the_model_allows_it(function, examples, shapes):
    source = find(function, **examples)
    assert [spec.shape for spec in source.inputs] == shapes


@pytest.mark.parametrize(
    ("function", "axis", "reason"),
    [
        (lambda m, x, y: m.linear(x), "size 1 of 'x'", "eager mode fails at 5: RuntimeError: mat1 and mat2"),
        (lambda m, x, y: torch.cat([x, x]), "size 0 of 'x'", r"output 'out' has shape [10, 4] at 5, and [12, 4] at 6"),
        (lambda m, x, y: x[:, 0] * x[:, 3], "size 1 of 'x'", "what comes after the first 4 changes no output"),
        (lambda m, x, y: x * sum(range(x.shape[0])), "size 0 of 'x'", "a trace of the model keeps it"),
        (lambda m, x, y: x * 2 if x.shape[0] > 5 else x, "size 0 of 'x'", "keeps it (Python reads numbers at "),
    ],
    ids=["layer", "other size", "unused", "loop", "branch"],
)
def test_a_size_is_fixed_for_a_reason(function, axis, reason):
    assert reason in explain(find(function, x=rows(5, 4)), axis)


def test_entries_that_count_are_open():
    """The control of columns that change nothing: a sum over columns has as many as there are."""
    source = find(lambda m, x, y: x.sum(1) + x[:, 0], x=rows(5, 4))
    assert source.inputs[0].shape == ("x_0", "x_1")


def test_a_table_that_is_full_leaves_smaller_sizes():
    table = rows(6, 3)
    source = find(lambda m, x, y: x + table[torch.arange(x.shape[0])], x=rows(6, 3))
    assert source.inputs[0].shape == ("x_0", 3)


def test_a_size_that_must_be_divisible_is_fixed():
    source = find(lambda m, x, y: x.reshape(-1, 2, 4).sum(1).sum(), x=rows(6, 4))
    assert source.inputs[0].shape[0] == 6


def test_two_ties_of_one_size_are_two_sizes():
    class Two(nn.Module):
        def forward(self, a, b, c, d):
            return {"y": (a + b).sum(), "z": (c * d).sum()}

    source = python_factory.source_from_module(Two(), "m", {n: rows(5) for n in "abcd"}, "the test")
    source = choose_sizes(choose_batch(source, ShapeChoice("no"), 0), ShapeChoice(), 0)
    assert [spec.shape for spec in source.inputs] == [("a_0",), ("a_0",), ("c_0",), ("c_0",)]


def test_many_dimensions_are_tried_in_groups(monkeypatch):
    monkeypatch.setattr(open_sizes, "MAX_SINGLE", 1)
    source = find(lambda m, x, y: m.linear(x) + y, x=rows(5, 4), y=rows(5, 4))
    assert [spec.shape for spec in source.inputs] == [("x_0", 4), ("x_0", 4)]


def test_trials_are_limited(monkeypatch):
    monkeypatch.setattr(open_sizes, "LEAST_TRIALS", 0)
    monkeypatch.setattr(open_sizes, "MAX_TRIALS", 1)
    source = find(lambda m, x, y: x * 2, x=rows(5, 3))
    assert source.inputs[0].shape == (5, 3)
    assert explain(source, "size 0 of 'x'") == "too many sizes to try"


def test_costly_calls_are_not_tried(monkeypatch):
    monkeypatch.setattr(open_sizes, "MAX_NUMBERS", 1)
    source = find(lambda m, x, y: x * 2, x=rows(5, 3))
    assert source.inputs[0].shape == (5, 3)
    assert explain(source, "size 0 of 'x'") == "a call is too costly to try sizes"


@pytest.mark.parametrize("choice", [ShapeChoice("no"), ShapeChoice(sizes="open")], ids=["no batch", "open"])
def test_a_model_that_takes_gradients_has_open_sizes(choice):
    class Force(nn.Module):
        def forward(self, x):
            x = x.detach().requires_grad_()
            return {"force": -torch.autograd.grad((x**4).sum(), x)[0]}

    source = load_model(
        lambda: python_factory.source_from_module(Force(), "m", {"x": rows(5, 3)}, "the test"), choice, 0
    )
    assert source.inputs[0].shape == ("x_0", "x_1")


def test_a_trial_that_ends_its_process(monkeypatch):
    def end(*_, **__):
        raise ForkFailedError("its process was killed")

    monkeypatch.setattr(open_sizes, "run_in_fork", end)
    source = find(lambda m, x, y: x * 2, x=rows(5, 3))
    assert [(f.what, f.reason) for f in source.findings if f.check == OPEN_SIZES] == [
        ("sizes were not tried", "its process was killed")
    ]
    with pytest.raises(CaptureError, match=r"sizes were not tried(.|\n)*killed(.|\n)*--sizes fixed"):
        find(lambda m, x, y: x * 2, ShapeChoice(sizes="open"), x=rows(5, 3))


def test_names_are_identifiers():
    class Named(nn.Module):
        def forward(self, state):
            return {"y": state["ä"] * 2, "z": state["h"] * 2, "w": state["h_"] * 2}

    examples = {"state": {"ä": rows(5), "h": rows(6), "h_": rows(7)}}
    source = python_factory.source_from_module(Named(), "m", examples, "the test")
    source = choose_sizes(choose_batch(source, ShapeChoice(), 0), ShapeChoice(), 0)
    assert [spec.shape for spec in source.inputs] == [("state___0",), ("state_h_0",), ("state_h__0",)]


def test_it_is_as_asked_for():
    fixed = find(lambda m, x, y: x * 2, ShapeChoice(sizes="fixed"), x=rows(5, 3))
    assert fixed.inputs[0].shape == (5, 3)
    assert not any(f.check == OPEN_SIZES for f in fixed.findings)
    assert find(lambda m, x, y: x * 2, ShapeChoice(), x=rows(5, 3)).may_fix_sizes
    assert not find(lambda m, x, y: x * 2, ShapeChoice(sizes="open"), x=rows(5, 3)).may_fix_sizes
    with pytest.raises(UsageError, match=r"no size of model 'm' is open(.|\n)*size 0 of 'x': a trace(.|\n)*size 1 of"):
        find(lambda m, x, y: m.linear(x) * len(range(x.shape[0])), ShapeChoice(sizes="open"), x=rows(5, 4))


def test_what_a_signature_says_holds():
    class Declared(nn.Module):
        signature = torchferry.Signature.of({"x": (5, 3)}, {"y": (5, 3)}, batch_ndim=0)

        def forward(self, x):
            return {"y": x * 2}

    source = python_factory.source_from_module(Declared(), "m", None, "the test")
    assert choose_sizes(source, ShapeChoice(), 0) is source is choose_sizes(source, ShapeChoice(sizes="fixed"), 0)
    with pytest.raises(UsageError, match=r"says itself what its sizes are(.|\n)*mend: change its signature"):
        choose_sizes(source, ShapeChoice(sizes="open"), 0)
    source = dataclasses.replace(source, origin=dataclasses.replace(source.origin, kind="neml2"))
    with pytest.raises(UsageError, match="models of input files have a batch of fixed shapes"):
        choose_sizes(source, ShapeChoice(sizes="open"), 0)


@pytest.mark.parametrize(
    ("error", "is_fixed"),
    [
        (UnsoundError("w", check="batch size"), True),
        (UnsoundError("w", check="random numbers"), False),
        (MismatchError("w"), True),
        (CaptureError("w"), True),
        (OperatorError("w"), False),
        (UsageError("w"), False),
    ],
)
def test_errors_that_sizes_may_be_the_cause_of(error, is_fixed):
    source = find(lambda m, x, y: x * 2, x=rows(5, 3))
    fixed_source = fix_sizes(source, error)
    assert (fixed_source is not None) == is_fixed
    if fixed_source is not None:
        assert fixed_source.inputs[0].shape == (5, 3)
        assert fix_sizes(fixed_source, error) is None
        (finding,) = [f for f in fixed_source.findings if f.check == OPEN_SIZES]
        assert finding.reason == "with x_0, x_1 open: w"


def test_a_file_takes_the_sizes_that_were_found(tmp_path):
    def message(m, h, edges):
        source, target = edges[0], edges[1]
        return {"h": h + torch.zeros_like(h).index_add(0, target, m.linear(h[source]).tanh())}

    edges = torch.tensor([[0, 1, 2, 3, 4, 0, 2], [1, 2, 3, 4, 0, 2, 4]])
    model = Call(message)
    (exported,) = torchferry.export(model, inputs={"x": rows(5, 4), "y": edges}, output=tmp_path / "m.pt")
    texts = [f.what for f in exported.contract.findings if f.check == OPEN_SIZES]
    # The edges name five nodes.
    assert "compared with eager mode: x_0 from 5 to 1000, y_1 from 1 to 1024" in texts
    assert [spec.shape for spec in exported.contract.inputs] == [("x_0", 4), (2, "y_1")]
    h, more = rows(9, 4), torch.tensor([[8, 7, 0], [0, 8, 8]])
    result = torchferry.load(exported.path).call("forward", {"x": h, "y": more})["h"]
    torch.testing.assert_close(result, model(h, more)["h"].detach())
    with pytest.raises(torch.jit.Error, match=r"input 1 \(y\): got shape \[3, 2\], expected \[2, y_1\]"):
        torchferry.load(exported.path).call("forward", {"x": h, "y": more.T})


class Far(nn.Module):
    def forward(self, x):
        return {"y": (x * 2 if x.shape[0] > 60 else x).sum()}


def test_sizes_that_the_gate_refuses_are_those_of_the_examples(tmp_path):
    """A size far from the examples decides; nobody has asked for open sizes."""
    (exported,) = torchferry.export(Far(), inputs={"x": rows(5)}, output=tmp_path / "m.pt")
    assert exported.contract.inputs[0].shape == (5,)
    (finding,) = [f for f in exported.contract.findings if f.check == OPEN_SIZES]
    assert finding.what == "all sizes are those of the examples"
    assert "with x_0 open: model 'Far' cannot be captured soundly" in finding.reason
    (checked,) = torchferry.check(Far(), inputs={"x": rows(5)})
    assert any(f.what == finding.what for f in checked.findings)
    with pytest.raises(UnsoundError, match=r"the open size is read into Python(.|\n)*test_open_sizes.py:\d+"):
        torchferry.export(Far(), inputs={"x": rows(5)}, output=tmp_path / "n.pt", sizes="open")
    assert not (tmp_path / "n.pt").exists()


def test_a_kernel_has_fixed_sizes(tmp_path):
    model, inputs = Call(lambda m, x, y: x.square().sum()), {"x": rows(5, 3)}
    (exported,) = torchferry.export(model, inputs=inputs, output=tmp_path / "m", formats=["pt", "c"], batch="no")
    assert exported.contract.inputs[0].shape == (5, 3)
    with pytest.raises(UsageError, match="a kernel is for tensors of fixed shape"):
        torchferry.export(model, inputs=inputs, output=tmp_path / "m", formats=["pt", "c"], sizes="open")


@pytest.mark.parametrize(
    ("batch", "sizes", "message"),
    [
        ("yes", "open", "only whole shapes have open sizes"),
        ("auto", "wide", "unknown choice(.|\n)*--sizes(.|\n)*auto, open, fixed"),
    ],
)
def test_what_contradicts_itself(batch, sizes, message):
    with pytest.raises(UsageError, match=message):
        ShapeChoice(batch, sizes)


def test_gradients_of_pairs_do_not_fill_the_memory(tmp_path):
    """Pairs of points hold memory that grows with the square of their number, which small numbers do not show."""

    class Pairs(nn.Module):
        def forward(self, x):
            x = x.detach().requires_grad_()
            energy = ((x[:, None] - x[None]).square().sum(-1) + 1).reciprocal().sum()
            return {"energy": energy, "force": -torch.autograd.grad(energy, x)[0]}

    (exported,) = torchferry.export(Pairs(), inputs={"x": rows(5, 3)}, output=tmp_path / "m.pt")
    assert exported.contract.inputs[0].shape == ("x_0", "x_1")
    assert "x_0 1000: not run, it would hold about" in exported.contract.batch.limits


def test_derivatives_have_fixed_sizes(tmp_path):
    model, inputs = Call(lambda m, x, y: x.square()), {"x": rows(5, 3)}
    (exported,) = torchferry.export(model, inputs=inputs, output=tmp_path / "m.pt", batch="no", derivatives="all")
    assert exported.contract.inputs[0].shape == (5, 3)
    with pytest.raises(UsageError, match="derivatives of a model with open sizes have no shape"):
        torchferry.export(model, inputs=inputs, output=tmp_path / "n.pt", batch="no", sizes="open", derivatives="all")

"""torch's control flow of higher order, in eager mode and in files."""

from __future__ import annotations

import pytest
import torch
from functorch.experimental.control_flow import cond
from torch import nn
from torch._higher_order_ops import map as map_rows
from torch._higher_order_ops import scan
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.while_loop import while_loop

import torchferry
from exporter.common import control_flow
from exporter.common.control_flow import run_control_flow
from exporter.common.errors import CaptureError, TorchferryError

F = torch.float64
X = torch.linspace(-1, 2, 12, dtype=F).reshape(4, 3)


def choose(x, shift):
    """The name is imported, and a branch reads a variable around it."""
    scale = shift.exp()

    def grow(x):
        return {"y": x.sin() * scale, "sum": x.sum()}

    def shrink(x):
        return {"y": x * 2 - scale, "sum": -x.sum()}

    return cond(x.sum() > shift, grow, shrink, (x,))


def run_maps(x, shift):
    last, rows = scan(lambda carry, row: (carry + row, carry * row), torch.zeros(3, dtype=F), x)
    mapped = map_rows(lambda row, s: row.sin() * s, x, shift)
    return {
        "last": last,
        "rows": rows,
        "mapped": mapped,
        "sums": associative_scan(torch.add, x, 0, combine_mode="generic"),
    }


class Model(nn.Module):
    signature = torchferry.Signature.of({"x": (4, 3), "shift": ()}, batch_ndim=0)

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x, shift):
        return self.function(x, shift)


def as_torch_runs_it(x, shift):
    sums = [x[: i + 1].sum(0) for i in range(4)]
    befores = [torch.zeros(3, dtype=F), *sums[:-1]]
    rows = torch.stack([before * row for before, row in zip(befores, x, strict=True)])
    return {"last": sums[-1], "rows": rows, "mapped": x.sin() * shift, "sums": torch.stack(sums)}


@pytest.mark.parametrize("shift", [0.0, 100.0])
def test_a_branch_is_that_of_torch(shift):
    """Outside the context torch compiles the call."""
    shift = torch.tensor(shift, dtype=F)
    expected = choose(X, shift)
    with run_control_flow():
        got = choose(X, shift)
    for name, value in expected.items():
        assert torch.equal(got[name], value), name
    assert torch.equal(got["sum"], X.sum() if X.sum() > shift else -X.sum())


def test_a_file_takes_both_branches(tmp_path):
    """Values and derivatives, on either side of the predicate."""
    (exported,) = torchferry.export(Model(choose), output=tmp_path / "m.pt", derivatives="y:x")
    module = torchferry.load(exported.path)
    for shift in (0.0, 100.0):
        inputs = {"x": X, "shift": torch.tensor(shift, dtype=F)}
        with run_control_flow():
            expected = choose(**inputs)
        got = module.call("jacobian", inputs)
        torch.testing.assert_close(got["y"], expected["y"], rtol=1e-14, atol=1e-14)
        slope = X.cos() * inputs["shift"].exp() if shift < X.sum() else torch.full_like(X, 2.0)
        torch.testing.assert_close(got["d y / d x"].reshape(12, 12).diagonal(), slope.flatten(), rtol=1e-14, atol=1e-14)


def test_a_file_with_maps_and_scans(tmp_path):
    (exported,) = torchferry.export(Model(run_maps), output=tmp_path / "m.pt")
    inputs = {"x": X.flip(0), "shift": torch.tensor(3.0, dtype=F)}
    got = torchferry.load(exported.path).call("forward", inputs)
    for name, value in as_torch_runs_it(**inputs).items():
        torch.testing.assert_close(got[name], value, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize(("predicate", "function"), [(True, torch.sin), (0.0, torch.cos)])
def test_a_number_chooses_once(predicate, function, tmp_path):
    model = Model(lambda x, shift: cond(predicate, torch.sin, torch.cos, (x,)) + shift)
    (exported,) = torchferry.export(model, output=tmp_path / "m.pt")
    inputs = {"x": X, "shift": torch.tensor(1.0, dtype=F)}
    got = torchferry.load(exported.path).call("forward", inputs)
    torch.testing.assert_close(got["output"], function(X) + 1)


class BySize(nn.Module):
    signature = torchferry.Signature.of({"x": ("n", 3)}, {"y": ("n", 3)})

    def forward(self, x):
        return cond(x.shape[0] > 6, torch.sin, torch.cos, (x,))


def test_a_size_chooses_at_every_call(tmp_path):
    (exported,) = torchferry.export(BySize(), output=tmp_path / "m.pt")
    model = torchferry.load(exported.path)
    for rows, function in ((4, torch.cos), (9, torch.sin)):
        x = torch.rand(rows, 3, dtype=F)
        torch.testing.assert_close(model.call("forward", {"x": x})["y"], function(x))


def test_a_lost_branch_is_seen(tmp_path, monkeypatch):
    """The control: a capture that keeps the first branch."""
    original = control_flow._run_branches

    def keep_first(predicate, first, second, operands=()):
        if control_flow._is_captured():
            return first(*operands)
        return original(predicate, first, second, operands)

    monkeypatch.setattr(control_flow, "_run_branches", keep_first)
    with pytest.raises(TorchferryError, match=r"something else than the model|differ"):
        torchferry.export(Model(choose), output=tmp_path / "m.pt")
    assert not list(tmp_path.iterdir())


def of_two_dtypes(x, shift):
    return cond(x.sum() > shift, lambda x: x.sin(), lambda x: x.float(), (x,))


def of_two_structures(x, shift):
    return cond(x.sum() > shift, lambda x: (x, x), lambda x: (x,), (x,))


def fails_on_the_other_side(x, shift):
    return cond(shift > 1e9, lambda x: torch.linalg.cholesky(x @ x.T - 1e3), lambda x: x @ x.T, (x,))


def writes_to_an_operand(x, shift):
    return cond(x.sum() > shift, lambda x: x.clamp_(max=1e9), lambda x: x.sin(), (x.clone(),))


def has_several_predicates(x, shift):
    return cond(x > shift, lambda x: x.cos(), lambda x: x.sin(), (x,))


def loop_on_data(x, shift):
    (y,) = while_loop(lambda x: x.sum() < 20, lambda x: (x + 1,), (x,))
    return y + shift


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (of_two_dtypes, r"different outputs(.|\n)*test_control_flow.py(.|\n)*\[4, 3\] float64 and \[4, 3\] float32"),
        (of_two_structures, "different outputs"),
        (writes_to_an_operand, r"writes to an operand(.|\n)*test_control_flow.py(.|\n)*x.clone"),
        (has_several_predicates, r"several elements(.|\n)*\[4, 3\](.|\n)*torch.where"),
        (fails_on_the_other_side, r"fails on data of the other(.|\n)*test_control_flow.py(.|\n)*positive-definite"),
        (loop_on_data, r"as often as data say(.|\n)*test_control_flow.py(.|\n)*torchferry.mark"),
    ],
)
def test_what_no_capture_can_keep(function, message, tmp_path):
    with pytest.raises(CaptureError, match=message):
        torchferry.export(Model(function), output=tmp_path / "m.pt")

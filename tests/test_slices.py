"""Large batches go through a file slice by slice."""

from __future__ import annotations

import pytest
import torch
from conftest import ROOT, load_module
from torch import nn

import torchferry
from exporter.capture import trace
from exporter.capture.trace import ROWS
from exporter.errors import MismatchError
from runtime_checks.report import FAILED

F = torch.float64


class Chain(nn.Module):
    """Of enough operations to be worth it."""

    def forward(self, x):
        for k in range(12):
            x = torch.sin(x) + k
        return {"y": x, "z": x.sum(-1)}


X = torch.linspace(-1, 1, 12, dtype=F).reshape(4, 3)


@pytest.fixture
def exported(tmp_path, without_the_gate):
    (one,) = torchferry.export(Chain(), inputs={"x": X}, output=tmp_path / "chain.pt")
    return one


@pytest.mark.parametrize("rows", [ROWS - 1, ROWS, ROWS + 1, 2 * ROWS, 2 * ROWS + 7])
def test_slices_are_put_together(exported, rows):
    x = torch.randn(rows, 3, dtype=F, generator=torch.Generator().manual_seed(0))
    module = load_module(exported.path)
    for got, wanted in zip(module(x), module.forward_batch(x), strict=True):
        assert torch.equal(got, wanted)


def test_gradients_go_through_slices(exported):
    x = torch.randn(ROWS + 5, 3, dtype=F, generator=torch.Generator().manual_seed(0)).requires_grad_(True)
    module = load_module(exported.path)
    got, wanted = (torch.autograd.grad(run(x)[1].sum(), x)[0] for run in (module, module.forward_batch))
    assert torch.equal(got, wanted)


def test_a_large_batch_is_part_of_every_verification(exported):
    (sizes,) = (c for c in exported.report.checks if c.check == "batch sizes")
    assert "batch 20011" in sizes.detail


def test_a_few_operations_go_at_once():
    methods = load_module(ROOT / "artifacts" / "rates.pt")._c._method_names()
    assert "forward_slices_batch" not in methods


def test_a_lost_slice_is_seen(tmp_path, monkeypatch, without_the_gate):
    original = trace.sliced_source

    def short(*given):
        return original(*given).replace(f"tf_rows, {ROWS})", f"tf_rows - {ROWS}, {ROWS})")

    monkeypatch.setattr(trace, "sliced_source", short)
    with pytest.raises(MismatchError) as caught:
        torchferry.export(Chain(), inputs={"x": X}, output=tmp_path / "chain.pt")
    assert {c.check for c in caught.value.report.checks if c.verdict == FAILED} == {"batch sizes"}

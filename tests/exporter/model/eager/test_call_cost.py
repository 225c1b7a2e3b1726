"""What an eager call costs is counted, and what would cost too much is left out and said."""

from __future__ import annotations

import math

import pytest
import torch
from project import load_module
from torch import nn

import torchferry
from exporter.common.errors import UnsoundError
from exporter.model.eager import call_cost
from exporter.model.eager.call_cost import CallCost, measure_call_cost
from runtime_checks.report import NOT_RUN

F = torch.float64
X = torch.rand(5, 3, dtype=F)


class Chain(nn.Module):
    """Twelve operations that compute 6 numbers for each element, enough for slices."""

    signature = torchferry.Signature.of({"x": (3,)}, {"y": (3,)})

    def forward(self, x):
        for k in range(12):
            x = torch.sin(x) + k
        return x


class Threshold(Chain):
    """Another result from a size on that the code names."""

    def forward(self, x):
        return super().forward(x) * (2 if len(x) > 40 else 1)


@pytest.fixture
def costly(monkeypatch):
    """Makes each element of a chain, 72 numbers, cost so much that 500 are not run."""
    monkeypatch.setattr(call_cost, "MAX_NUMBERS_PER_CHECK", 500 * 72 - 1)


@pytest.mark.parametrize(
    ("call", "numbers"),
    [
        (X.exp, 3),
        (lambda: X.exp() + 1, 6),
        (lambda: X.t()[:2].unsqueeze(0).expand(4, 2, 5), 0),
        (lambda: X.clone().mul_(2), 6),
        (lambda: X @ torch.ones(3, 4, dtype=F), 12 / 5 + 4 + 2 * 3 * 4 / 10),
        (lambda: torch.var_mean(X, 1), 2),
    ],
    ids=["one", "two", "views", "in place", "product", "two results"],
)
def test_numbers_that_a_call_computes_for_each_element(call, numbers):
    assert measure_call_cost(call, 5).numbers_per_element == pytest.approx(numbers)


def test_what_runs_under_no_counter_has_no_bound():
    def fail():
        raise RuntimeError

    assert measure_call_cost(fail, 5) == CallCost()
    assert CallCost().is_affordable(10**9)


def test_small_batches_run_whatever_they_cost_and_the_sum_is_bounded():
    cost = CallCost(numbers_per_element=1e12)
    assert cost.is_affordable(13)
    assert not cost.is_affordable(14)
    cheap = CallCost(numbers_per_element=1.0, max_numbers=100)
    assert cheap.is_affordable(60)
    assert not cheap.is_affordable(60, total=50)
    assert CallCost(1e12, math.inf).is_affordable(10**6)


def test_a_costly_batch_is_left_out_and_said(costly, tmp_path):
    (one,) = torchferry.export(Chain(), output=tmp_path / "m.pt")
    assert one.contract.batch.sizes == (0, 1, 2, 5, 13, 64)
    assert "batch 1000: not run, it would compute about 7e+04 numbers (--thorough)" in one.contract.batch.limits
    (sizes,) = (c for c in one.report.checks if c.check == "batch sizes")
    assert "batch 64" in sizes.detail
    assert "batch 20011" not in sizes.detail
    (beyond,) = (c for c in one.report.checks if c.check == "batches beyond 1,000")
    assert (beyond.verdict, beyond.detail) == (NOT_RUN, one.contract.batch.limits)
    # What is not verified is not written.
    assert "forward_slices_batch" not in load_module(one.path)._c._method_names()


def test_thorough_runs_it(costly, tmp_path):
    (one,) = torchferry.export(Chain(), output=tmp_path / "m.pt", thorough=True)
    assert one.contract.batch.sizes == (0, 1, 2, 5, 13, 1000)
    assert one.contract.batch.limits == ""
    (sizes,) = (c for c in one.report.checks if c.check == "batch sizes")
    assert "batch 20011" in sizes.detail
    assert "forward_slices_batch" in load_module(one.path)._c._method_names()


def test_the_gate_says_which_sizes_it_left_out(costly):
    (report,) = torchferry.check(Chain())
    (note,) = (f for f in report.findings if f.check == "batch size")
    assert note.what.startswith("sizes 255, 256, 1000, ")
    assert note.reason == "a check may not cost so much; the largest size that was run is 128"
    (thorough,) = torchferry.check(Chain(), thorough=True)
    assert [f for f in thorough.findings if f.check == "batch size"] == []


def test_a_threshold_of_a_costly_model_is_found_all_the_same(costly):
    with pytest.raises(UnsoundError, match="at batch 64") as caught:
        torchferry.check(Threshold())
    assert "test_call_cost.py" in str(caught.value)


def test_sizes_that_no_check_could_afford_are_not_said_to_agree(monkeypatch):
    monkeypatch.setattr(call_cost, "MAX_NUMBERS_PER_CHECK", 1)
    (report,) = torchferry.check(Threshold())
    note = next(f for f in report.findings if f.what == "len() reads a size")
    assert note.reason == "capture and eager mode agree at every size that was run, to 12"
    with pytest.raises(UnsoundError, match="at batch 64"):
        torchferry.check(Threshold(), thorough=True)

"""What an eager call costs is counted, and what would cost too much is left out and said."""

from __future__ import annotations

import time

import pytest
import torch
from project import load_module
from torch import nn

import torchferry
from exporter.common.errors import UnsoundError, UsageError
from exporter.frontends import python_factory
from exporter.model.eager import call_cost, warmup
from exporter.model.eager.call_cost import CallCost, measure_call_cost
from exporter.soundness.checks import batch_sizes
from runtime_checks.checks.batch_invariance import LARGE_BATCHES
from runtime_checks.report import NOT_RUN, PASSED

F = torch.float64
ROWS = {n: torch.rand(n, 3, dtype=F) for n in (5, 10)}
WEIGHT = torch.ones(3, 4, dtype=F)
SQUARE = torch.ones(300, 300, dtype=F)


class Chain(nn.Module):
    """Computes 72 numbers for each element, by enough operations for chunks."""

    signature = torchferry.Signature.of({"x": (3,)}, {"y": (3,)})

    def forward(self, x):
        for k in range(12):
            x = torch.sin(x) + k
        return x


class Threshold(Chain):
    """Another result from a size on that no graph shows."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, x):
        return super().forward(x) * (2 if len(x) > self.size else 1)


class Literal(Chain):
    """Another result at one size, with which a size is compared."""

    def forward(self, x):
        return super().forward(x) * (2 if x.shape[0] == 2500 else 1)


class Limited(Chain):
    def forward(self, x):
        if len(x) > 20 or len(x) == 0:
            raise ValueError
        return super().forward(x)


@pytest.fixture
def costly(monkeypatch):
    """Lets a check compute the numbers of not quite 500 elements of a chain."""
    monkeypatch.setattr(call_cost, "NUMBERS_PER_OPERATION", 0)
    monkeypatch.setattr(call_cost, "NUMBERS_PER_SECOND", 500 * 72 - 1)


@pytest.mark.parametrize(
    ("function", "operations", "numbers"),
    [
        (torch.exp, 1, 3),
        (lambda x: x.exp() + 1, 2, 6),
        (lambda x: x.t()[:2].unsqueeze(0).expand(4, 2, len(x)), 0, 0),
        (lambda x: x.clone().mul_(2), 2, 6),
        (lambda x: x @ WEIGHT, 1, 4 + 2 * 3 * 4 / 10),
        (lambda x: torch.var_mean(x, 1), 1, 2),
    ],
    ids=["one", "two", "views", "in place", "product", "two results"],
)
def test_numbers_that_a_call_computes(function, operations, numbers):
    cost = measure_call_cost(lambda n: function(ROWS[n]), (5, 10))
    assert cost.numbers == pytest.approx([1000 * operations + n * numbers for n in (5, 10)])
    assert cost.estimate(1000) == pytest.approx(1000 * operations + 1000 * numbers)


def test_what_does_not_depend_on_the_size_is_counted_once():
    fixed = 1000 + 300**2 + 2 * 300**3 / 10
    cost = measure_call_cost(lambda n: (SQUARE @ SQUARE, ROWS[n].exp()), (5, 10))
    assert cost.estimate(1000) == pytest.approx(fixed + 1000 + 3000)


def test_what_grows_with_the_square_of_a_size_is_counted_so(monkeypatch):
    monkeypatch.setattr(call_cost, "NUMBERS_PER_OPERATION", 0)
    cost = measure_call_cost(lambda n: ROWS[n][:, None] * ROWS[n], (5, 10))
    assert cost.estimate(1000) == pytest.approx(3 * 1000**2)


def test_what_runs_under_no_counter_has_no_bound():
    def fail(size):
        raise RuntimeError

    assert measure_call_cost(fail, (5, 10)) == CallCost()
    assert CallCost().explain(10**9) == ""


def test_small_batches_run_whatever_they_cost_and_the_sum_is_bounded():
    dear = CallCost((5, 10), (5e12, 1e13), limit=1e9)
    assert dear.is_costly
    assert dear.explain(5) == ""
    assert dear.explain(13) == "it would take about 13000 s in eager mode (--budget, --thorough)"
    # A solve of few rows takes as long as one of more: small batches would save nothing.
    level = CallCost((5, 10), (5e12, 5.1e12), limit=1e9)
    assert not level.is_costly
    assert level.explain(13) == ""
    assert level.explain(14) != ""
    cheap = CallCost((5, 10), (5.0, 10.0), limit=100)
    assert cheap.explain(60) == ""
    assert cheap.explain(60, 50) != ""
    assert cheap.explain(60, 50, factor=2) == ""


@pytest.mark.parametrize(
    ("function", "peak"),
    [
        (lambda x: x.exp(), 3),
        (lambda x: x.exp().exp().exp(), 6),
        (lambda x: [x.exp() for _ in range(4)], 12),
        (lambda x: x.exp().mul_(2).t(), 3),
    ],
    ids=["one", "a chain", "all alive", "in place, and a view"],
)
def test_bytes_that_are_held_at_the_same_time(function, peak):
    cost = measure_call_cost(lambda n: function(ROWS[n]), (5, 10))
    assert cost.peaks == (8 * 5 * peak, 8 * 10 * peak)


def test_a_batch_for_which_there_is_no_memory_is_left_out(monkeypatch, tmp_path):
    monkeypatch.setattr(call_cost, "read_memory", lambda: 2 * 2 * 3 * 8 * 900)
    (exported,) = torchferry.export(Chain(), output=tmp_path / "m.pt")
    assert exported.contract.batch.sizes == (0, 1, 2, 5, 13, 64)
    assert "batch 1000: not run, it would hold about 0.0 GiB" in exported.contract.batch.limits


def test_a_budget_allows_more(costly, tmp_path):
    (exported,) = torchferry.export(Chain(), output=tmp_path / "m.pt", budget=3 * 2.1)
    assert exported.contract.batch.sizes == (0, 1, 2, 5, 13, 1000)


@pytest.mark.parametrize(
    ("options", "got", "expected"),
    [
        ({"budget": 0.05}, "0.05 s", "at least 0.1 s"),
        ({"budget": 0.0}, "0", "a finite number above 0"),
        ({"budget": float("nan")}, "nan", "a finite number above 0"),
        ({"budget": 1.0, "thorough": True}, None, "one of them"),
        ({"jobs": 0}, "0", "a number from 1 on"),
    ],
)
def test_limits_that_cannot_be_kept(costly, options, got, expected):
    with pytest.raises(UsageError) as caught:
        torchferry.check(Chain(), **options)
    assert caught.value.details.get("got") == got
    assert caught.value.details["expected"] == expected


def test_a_costly_batch_is_left_out_and_said(costly, tmp_path):
    (exported,) = torchferry.export(Chain(), output=tmp_path / "m.pt")
    assert exported.contract.batch.sizes == (0, 1, 2, 5, 13, 64)
    assert (
        "batch 1000: not run, it would take about 2.0 s in eager mode (--budget, --thorough)"
        in exported.contract.batch.limits
    )
    (sizes,) = (c for c in exported.report.checks if c.check == "batch sizes")
    assert "batch 64" in sizes.detail
    assert "batch 20011" not in sizes.detail
    (large,) = (c for c in exported.report.checks if c.check == LARGE_BATCHES)
    assert (large.verdict, large.detail) == (NOT_RUN, exported.contract.batch.limits)
    # What is not verified is not written.
    assert "forward_slices_batch" not in load_module(exported.path)._c._method_names()


def test_a_model_whose_small_batches_are_costly_has_the_smallest(costly, monkeypatch, tmp_path):
    monkeypatch.setattr(call_cost, "COSTLY", 12 * 72)
    monkeypatch.setattr(warmup, "DEFAULT_BUDGET", 0.03)
    (exported,) = torchferry.export(Chain(), output=tmp_path / "m.pt")
    # 3 is a dimension of the model.
    assert exported.contract.batch.sizes == (0, 1, 2)
    assert "batch 13: not run, it would take" in exported.contract.batch.limits
    checks = {c.check: c for c in exported.report.checks}
    assert checks["batch dimensions"].detail == "unbatched, 2 x 2"
    assert checks["memory layouts"].verdict == PASSED
    # A size that Python reads is found there, too.
    with pytest.raises(UnsoundError):
        torchferry.check(Threshold(3))


def test_what_does_not_end_has_no_known_cost(monkeypatch):
    monkeypatch.setattr(warmup, "SECONDS_OF_COUNT", 0.2)
    monkeypatch.setattr(warmup, "_measure_cost", lambda first, seed, budget: time.sleep(60))
    source = python_factory.source_from_module(Chain(), "m", None, "here")
    assert warmup.measure_cost(warmup.run_first(source, 0), 0).cost == CallCost()


def test_thorough_runs_it(costly, tmp_path):
    (exported,) = torchferry.export(Chain(), output=tmp_path / "m.pt", thorough=True)
    assert exported.contract.batch.sizes == (0, 1, 2, 5, 13, 1000)
    assert exported.contract.batch.limits == ""
    (sizes,) = (c for c in exported.report.checks if c.check == "batch sizes")
    assert "batch 20011" in sizes.detail
    assert "forward_slices_batch" in load_module(exported.path)._c._method_names()


def test_the_gate_says_which_sizes_it_left_out(costly):
    (report,) = torchferry.check(Chain())
    (note,) = (f for f in report.findings if f.check == "batch size")
    assert note.what.startswith("sizes 128, 255, 256, 1000, ")
    assert note.reason == "a check may not hold or compute so many numbers; the largest size that was run is 100"
    (thorough,) = torchferry.check(Chain(), thorough=True)
    assert [f for f in thorough.findings if f.check == "batch size"] == []


@pytest.mark.parametrize(("model", "size"), [(Threshold(300), 301), (Literal(), 2500)])
def test_a_size_that_a_costly_model_reads_is_found(costly, model, size):
    """A model that reads sizes may cost twenty times as much, and the sizes that its code names come first."""
    with pytest.raises(UnsoundError, match=f"at batch {size}: output") as caught:
        torchferry.check(model)
    assert "test_call_cost.py" in str(caught.value)


def test_sizes_that_no_check_could_afford_are_not_said_to_agree(monkeypatch):
    monkeypatch.setattr(call_cost, "NUMBERS_PER_SECOND", 1)
    (report,) = torchferry.check(Threshold(40))
    note = next(f for f in report.findings if f.what == "len() reads a size")
    assert note.reason == "capture and eager mode agree at every size that was run, to 13"
    with pytest.raises(UnsoundError, match="at batch 41"):
        torchferry.check(Threshold(40), thorough=True)


def test_sizes_that_eager_mode_refuses_are_not_said_to_agree(monkeypatch):
    (report,) = torchferry.check(Limited())
    note = next(f for f in report.findings if f.what == "len() reads a size")
    assert note.reason == "capture and eager mode agree at every size that was run, to 20"
    monkeypatch.setattr(batch_sizes, "MAX_NUMBERS", 4)
    (report,) = torchferry.check(Limited())
    note = next(f for f in report.findings if f.what == "len() reads a size")
    assert note.reason == "capture and eager mode agree at every size that was run, to 5"
    assert report.not_run == ()


class Derived(nn.Module):
    """Compares what is computed from a size, and on one side of that a size."""

    signature = Chain.signature

    def forward(self, x):
        if x.shape[0] // 32 > 4 and x.shape[0] == 777:
            return x * 2
        return x * 1


class Counted(nn.Module):
    signature = Chain.signature

    def forward(self, x):
        if x.numel() > 6000 and x.shape[0] == 3500:
            return x * 2
        return x * 1


@pytest.mark.parametrize(("model", "size"), [(Derived(), 777), (Counted(), 3500)])
def test_a_size_behind_a_number_that_follows_from_it_is_found(model, size):
    with pytest.raises(UnsoundError, match=f"at batch {size}: output"):
        torchferry.check(model)


def test_what_grows_fastest_is_counted_at_sizes_where_it_shows():
    """A square of 5 is little beside the operations; at 1,000 it is all that there is."""

    class Pairs(nn.Module):
        signature = torchferry.Signature.of({"x": ("n", 3)}, {"y": ()})

        def forward(self, x):
            return (x[:, None] - x[None]).square().sum()

    first = warmup.measure_cost(warmup.run_first(python_factory.source_from_module(Pairs(), "m", None, "here"), 0), 0)
    small, large = first.cost.sizes
    assert small > 5
    assert large <= 1000
    # Two tensors of n by n by 3 numbers are alive at a time.
    assert first.cost._extrapolate(first.cost.peaks, 1000) == pytest.approx(2 * 1000**2 * 3 * 8, rel=0.05)


def test_a_cost_that_does_not_grow_is_counted_a_few_times():
    class First(nn.Module):
        signature = torchferry.Signature.of({"x": ("n", 3)}, {"y": (3,)})

        def forward(self, x):
            return x[0] * 2

    first = warmup.measure_cost(warmup.run_first(python_factory.source_from_module(First(), "m", None, "here"), 0), 0)
    assert first.cost.sizes[1] <= 1000

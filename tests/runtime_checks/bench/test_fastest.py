"""The fastest engine: what passes the cases here and is allowed, and what is left out with its reason."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from kernel_host import edit, resealed
from project import ARTIFACTS

import torchferry
from exporter.common.errors import UsageError
from runtime_checks.bench import fastest
from runtime_checks.bench.steady_state import Timing


@pytest.fixture
def copy(solid: Path, tmp_path: Path) -> Path:
    """The return map, which carries its kernel."""
    shutil.copytree(solid.with_suffix(""), tmp_path / "m")
    return Path(shutil.copy(solid, tmp_path / "m.pt"))


def test_a_newton_loop_runs_by_its_kernel(copy):
    """TorchScript takes a hundred times as long for one element."""
    model = torchferry.load(copy, engine="auto", batches=(1, 7))
    choice = model.choice
    assert choice is not None
    assert choice.engine == "kernel"
    assert choice.nanoseconds["kernel"].keys() == choice.nanoseconds["torchscript"].keys() == {1, 7}
    assert choice.nanoseconds["torchscript"][1] > 5 * choice.nanoseconds["kernel"][1]
    assert "no m.pt2 beside it" in choice.left_out["pt2"]
    strain = 4e-3 * torch.eye(6, dtype=torch.float64)
    zeros, ep = torch.zeros_like(strain), torch.zeros(6, dtype=torch.float64)
    plain = torchferry.load(copy)
    for got, wanted in zip(model(strain, zeros, zeros, ep), plain(strain, zeros, zeros, ep), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-9)
    assert plain.choice is None


@pytest.mark.thorough
def test_the_least_of_all_sizes_is_taken(copy, monkeypatch):
    """Twice as long at one size and a third of the time at the other: the latter counts."""
    times = {("torchscript", 1): 1.0, ("kernel", 1): 2.0, ("torchscript", 9): 3.0, ("kernel", 9): 1.0}

    def measure(calls, method, inputs, batch, **_):
        assert all(len(value) == batch for value in inputs)
        return [Timing(engine, batch, times[engine, batch], 0, 0, 1, 1) for engine in calls]

    monkeypatch.setattr(fastest, "measure_throughput", measure)
    for batches, engine in {(1,): "torchscript", (9,): "kernel", (1, 9): "kernel"}.items():
        choice = torchferry.load(copy, engine="auto", batches=batches).choice
        assert choice is not None
        assert choice.engine == engine


def test_a_kernel_of_other_numbers_is_left_out(tmp_path):
    path = Path(shutil.copy(ARTIFACTS / "robertson.pt", tmp_path))
    torchferry.convert(path, tmp_path / "robertson", to="c")
    right = torchferry.load(path, engine="auto").choice
    assert right is not None
    assert "kernel" in right.nanoseconds
    resealed(tmp_path / "robertson", edit(".c", r"row = c->rows\[0\]", "row = 0 * c->rows[0]", 9))
    choice = torchferry.load(path, engine="auto", trust="native").choice
    assert choice is not None
    assert choice.engine == "torchscript"
    assert "does not pass" in choice.left_out["kernel"]
    assert choice.nanoseconds == {"torchscript": {}}


@pytest.mark.thorough
def test_a_strangers_kernel_is_left_out(copy, monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHFERRY_CACHE", str(tmp_path / "cache"))
    choice = torchferry.load(copy, engine="auto").choice
    assert choice is not None
    assert choice.engine == "torchscript"
    assert "TrustError" in choice.left_out["kernel"]
    allowed = torchferry.load(copy, engine="auto", trust="native").choice
    assert allowed is not None
    assert allowed.engine == "kernel"


@pytest.mark.parametrize("batches", [(), (0,), (1, -2), (2.5,)])
def test_sizes_that_are_none(copy, batches):
    with pytest.raises(UsageError, match="a batch has elements"):
        torchferry.load(copy, engine="auto", batches=batches)


def test_only_an_archive_has_engines(copy):
    with pytest.raises(UsageError, match="without options"):
        torchferry.load(copy.with_suffix(""), engine="auto")
    with pytest.raises(UsageError, match="no such engine") as caught:
        torchferry.load(copy, engine="autom")
    assert "auto" in str(caught.value)

"""Stages and passes of saved graphs, and what is said where there are none."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
from project import ROOT
from torch import nn

from exporter.common.errors import ArchiveError, UsageError
from exporter.common.torch_hooks import ignore_deprecations
from exporter.graph import executor_stages
from exporter.graph.executor_stages import Stage, compute_stage
from exporter.graph.listing import list_rows
from exporter.graph.loading import open_file
from exporter.graph.passes import run_passes

FOLDER = ROOT / "artifacts"
STAGES: tuple[Stage, ...] = ("raw", "profiling", "optimized")
RATES = FOLDER / "rates.pt"


def kinds(graph) -> list[str]:
    return [node.kind for node in graph]


def subtractions_of_time(staged) -> int:
    texts = [row.text for row in list_rows(staged.graph, staged.names)]
    return sum("(%t, %t~1, 1)" in text for text in texts)


def test_three_differences_of_time_become_one():
    """The tutorial's example: (t - t~1) stands in each of the three rates."""
    file = open_file(RATES)
    result = {name: compute_stage(file, "forward", name) for name in STAGES}
    assert [subtractions_of_time(result[s]) for s in STAGES] == [3, 1, 1]
    assert result["raw"].nodes == 16
    assert result["optimized"].nodes == 9
    assert [len(result[s].graph) for s in STAGES] == [10, 8, 8]


def test_the_ten_passes_one_after_another():
    result = run_passes(open_file(RATES), "forward")
    assert len(result) == 10
    assert all(not item.not_run for item in result)
    passes = {item.name: item for item in result}
    assert passes["inlining"].added["aten::sub"] == 6
    assert passes["inlining"].removed == {"prim::CallMethod": 3}
    assert passes["common subexpressions"].removed == {"aten::sub": 2}
    assert (result[0].before, result[-1].after) == (7, 9)
    for item, other in itertools.pairwise(result):
        assert item.after == other.before
        assert item.before - sum(item.removed.values()) + sum(item.added.values()) == item.after


def test_every_operation_names_its_model_and_its_line():
    result = compute_stage(open_file(RATES), "forward", "raw").graph
    for node in result:
        if node.kind.startswith("aten::"):
            assert node.origin.module in ("rate_a", "rate_b", "rate_c")
            assert node.origin.where.startswith("neml2/models/common/VariableRate.py:")
    optimized = compute_stage(open_file(RATES), "forward", "optimized").graph
    assert {n.origin.module for n in optimized if n.kind == "aten::div"} == {"rate_a", "rate_b", "rate_c"}


def test_what_stands_in_a_loop_of_a_submodule_names_it():
    result = compute_stage(open_file(FOLDER / "bar.pt"), "forward", "raw").graph
    inner = [n for n in result if n.kind in ("prim::Loop", "prim::If", "aten::gt", "aten::copy_")]
    assert len(inner) == 4
    for node in inner:
        assert node.origin.module == "law"
        assert node.origin.where.startswith("models.py:")


def test_profiled_types_are_shown():
    result = compute_stage(open_file(FOLDER / "robertson.pt"), "jacobian", "profiling")
    message = [row.text for row in list_rows(result.graph, result.names)]
    assert any(": float64[" in text for text in message[1:])
    assert "float64[" in message[0]
    assert result.names == ("y",)


@pytest.mark.parametrize("name", ["composed", "perzyna", "robertson", "loss_and_grad", "momentum_step", "bar"])
def test_every_method_has_every_stage(name):
    file = open_file(FOLDER / f"{name}.pt")
    assert file.contract is not None
    for method in file.contract.methods:
        counts = [compute_stage(file, method, s).nodes for s in STAGES]
        assert all(counts)


def test_a_method_that_is_captured_under_another_name():
    assert compute_stage(open_file(FOLDER / "perzyna.pt"), "jacobian", "raw").graph.method == "blocks_batch"


@pytest.fixture
def stranger(tmp_path) -> Path:
    """A TorchScript file that torchferry did not write."""
    with ignore_deprecations():
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).eval()
        torch.jit.script(model).save(str(tmp_path / "stranger.pt"))
    return tmp_path / "stranger.pt"


def test_a_strangers_file_is_read(stranger):
    result = compute_stage(open_file(stranger), "forward", "raw")
    assert kinds(result.graph) == ["aten::linear", "aten::tanh", "aten::linear"]
    assert result.names == ("input",)
    assert [n.origin.module for n in result.graph] == ["0", "1", "2"]


def test_a_stage_of_a_strangers_file_asks_for_inputs(stranger):
    with pytest.raises(UsageError, match="there are no inputs to run the method on") as caught:
        compute_stage(open_file(stranger), "forward", "optimized")
    assert "--inputs" in caught.value.details["mend"]
    arguments = {"input": torch.ones(2, 3)}
    assert compute_stage(open_file(stranger), "forward", "optimized", arguments).nodes
    with pytest.raises(UsageError, match="do not match those of the model"):
        compute_stage(open_file(stranger), "forward", "optimized", {"x": torch.ones(2, 3)})


def test_a_pass_that_cannot_run_says_why(stranger):
    shapes = next(p for p in run_passes(open_file(stranger), "forward") if "shape" in p.name)
    assert "without torchferry's contract and cases" in shapes.not_run
    assert shapes.before == shapes.after
    arguments = {"input": torch.ones(2, 3)}
    assert all(not p.not_run for p in run_passes(open_file(stranger), "forward", arguments))


def test_a_method_that_is_not_there():
    with pytest.raises(UsageError, match="there is no method 'jacobien'") as caught:
        compute_stage(open_file(FOLDER / "robertson.pt"), "jacobien", "raw")
    assert "did you mean 'jacobian'" in caught.value.details["expected"]


def test_a_stage_that_there_is_not():
    with pytest.raises(UsageError, match="there is no stage 'fused'"):
        compute_stage(open_file(RATES), "forward", "fused")  # pyright: ignore[reportArgumentType]


def test_a_stage_that_would_take_minutes(monkeypatch):
    monkeypatch.setattr(executor_stages, "MAX_OPTIMISED_NODES", 100)
    with pytest.raises(UsageError, match="takes minutes") as caught:
        compute_stage(open_file(FOLDER / "return_map.pt"), "forward", "optimized")
    assert "nodes" in caught.value.details["got"]
    assert compute_stage(open_file(FOLDER / "return_map.pt"), "forward", "raw").nodes > 100


def test_a_file_that_is_no_torchscript(tmp_path):
    (tmp_path / "text.pt").write_text("no zip")
    with pytest.raises(ArchiveError, match="damaged, or is no TorchScript"):
        open_file(tmp_path / "text.pt")
    torch.save({"weights": torch.ones(2)}, tmp_path / "weights.pt")
    with pytest.raises(ArchiveError, match="does not load"):
        compute_stage(open_file(tmp_path / "weights.pt"), "forward", "raw")


def test_the_executor_is_left_as_it_was():
    before = torch._C._jit_get_num_profiled_runs()  # pyright: ignore[reportAttributeAccessIssue]
    torch._C._jit_set_num_profiled_runs(3)  # pyright: ignore[reportArgumentType]
    try:
        compute_stage(open_file(RATES), "forward", "optimized")
        assert torch._C._jit_get_num_profiled_runs() == 3  # pyright: ignore[reportAttributeAccessIssue]
    finally:
        torch._C._jit_set_num_profiled_runs(before)

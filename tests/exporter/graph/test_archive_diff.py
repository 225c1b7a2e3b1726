"""``torchferry diff``: contract, graph, constants, numbers, and the verdict."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from project import ROOT, mark_thorough_after
from tampering import change_contract, rewrite
from torch import nn

import torchferry
from exporter.common.errors import ArchiveError, UsageError
from exporter.common.torch_hooks import ignore_deprecations
from torchferry.cli.app import run

ARTIFACTS = ROOT / "artifacts"
F = torch.float64


class Law(nn.Module):
    def __init__(self, stiffness: float, softening: bool = False, name: str = "force") -> None:
        super().__init__()
        self.stiffness = nn.Parameter(torch.tensor(stiffness, dtype=F))
        self.softening, self.name = softening, name

    def forward(self, stretch: torch.Tensor) -> dict[str, torch.Tensor]:
        force = self.stiffness * stretch
        return {self.name: force.tanh() if self.softening else force.sin()}


class OtherWay(Law):
    """The same numbers by other operations."""

    def forward(self, stretch: torch.Tensor) -> dict[str, torch.Tensor]:
        return {self.name: -((-self.stiffness * stretch).sin())}


X = {"stretch": torch.linspace(0.1, 1.0, 5, dtype=F)}


@pytest.fixture
def export(tmp_path, without_the_gate, without_verification):
    def run(model: nn.Module, name: str) -> Path:
        torchferry.export(model, inputs=X, output=tmp_path / f"{name}.pt")
        return tmp_path / f"{name}.pt"

    return run


def test_the_same_file(export, tmp_path):
    item = export(Law(2.0), "one")
    result = torchferry.diff(item, shutil.copy(item, tmp_path / "copy.pt"), run=True)
    assert result.verdict == "same file"
    assert result.same
    assert result.numbers
    assert result.lines() == [f"numbers: {len(result.numbers)} of {len(result.numbers)} outputs agree"]


def test_the_same_graph_with_another_history(export, tmp_path):
    item = export(Law(2.0), "one")
    other = Path(shutil.copy(item, tmp_path / "other.pt"))
    change_contract(other, lambda raw: raw["source"].update(version="0.0.1"))
    assert torchferry.diff(item, other).verdict == "same graph"


def test_the_same_numbers_by_another_graph(export):
    item, other = export(Law(2.0), "one"), export(OtherWay(2.0), "other")
    assert torchferry.diff(item, other).verdict == "differs in graph"
    result = torchferry.diff(item, other, run=True)
    assert result.verdict == "same numbers"
    assert [c.kind for c in result.changes.nodes].count("added") == 2
    assert all("aten::neg" in c.what for c in result.changes.nodes if c.kind == "added")


def test_another_parameter(export):
    item, other = export(Law(2.0), "one"), export(Law(2.5), "other")
    result = torchferry.diff(item, other, run=True)
    assert result.verdict == "differs in constants, numbers"
    (tensor,) = result.changes.tensors
    assert (tensor.name, tensor.largest, tensor.differ) == ("stiffness", 0.5, 1)
    assert result.differing[0].output == "force"
    assert not result.changes.nodes


def test_another_operator_at_its_line(export):
    item, other = export(Law(2.0), "one"), export(Law(2.0, softening=True), "other")
    result = torchferry.diff(item, other, run=True)
    assert result.verdict == "differs in graph, numbers"
    (change,) = [c for c in result.changes.nodes if c.method == "forward_batch"]
    assert "aten::tanh" in change.what
    assert "aten::sin" in change.what
    assert change.where.startswith("test_archive_diff.py:")
    assert any(line.startswith("graph: forward_batch") for line in result.lines())


def test_another_name_is_a_difference_of_the_contract(export):
    item, other = export(Law(2.0), "one"), export(Law(2.0, name="load"), "other")
    result = torchferry.diff(item, other)
    assert result.verdict == "differs in contract"
    assert result.graphs[0] == result.graphs[1]
    assert {"outputs", "methods.forward.outputs"} <= {c.field for c in result.contract}


def test_another_tolerance_is_a_difference_of_the_contract(tmp_path):
    other = Path(shutil.copy(ARTIFACTS / "rates.pt", tmp_path / "rates.pt"))
    change_contract(other, lambda raw: raw["tolerance"]["dtypes"]["float64"].update(rtol=1e-3))
    (change,) = torchferry.diff(ARTIFACTS / "rates.pt", other).contract
    assert (change.field, change.before, change.now) == ("tolerance.dtypes.float64.rtol", 1e-10, 1e-3)


@pytest.mark.parametrize(("factor", "is_same"), [(1 + 1e-15, True), (1 + 1e-8, True), (1 - 1e-5, False), (2.0, False)])
def test_a_bound_of_another_processor_is_no_difference(factor, is_same, tmp_path):
    other = Path(shutil.copy(ARTIFACTS / "rates.pt", tmp_path / "rates.pt"))
    change_contract(other, lambda raw: raw["tolerance"]["dtypes"]["float64"].update(rtol=factor * 1e-10))
    assert torchferry.diff(ARTIFACTS / "rates.pt", other).same == is_same


def test_nan_is_no_small_difference(export):
    item, other = export(Law(2.0), "one"), export(Law(2.0), "other")
    module = torch.jit.load(str(other))
    with torch.no_grad():
        module.stiffness.fill_(float("nan"))
    with ignore_deprecations():
        torch.jit.save(module, str(other))
    result = torchferry.diff(item, other)
    assert str(result.changes.tensors[0].largest) == "nan"
    assert result.verdict == "differs in constants"
    report = json.loads(json.dumps(result.as_dict(), allow_nan=False))
    assert report["changes"]["tensors"][0]["largest"] == "nan"


@pytest.mark.parametrize("value", mark_thorough_after(1, [float("nan"), float("inf"), 1e308]))
def test_numbers_that_json_does_not_know(value, export, capfd):
    item, other = export(Law(2.0), "one"), export(Law(2.0), "other")
    with ignore_deprecations():
        module = torch.jit.load(str(other))
        with torch.no_grad():
            module.stiffness.fill_(value)
        torch.jit.save(module, str(other))
    assert run(["diff", str(item), str(other), "--run", "--json"]) == 5
    assert json.loads(capfd.readouterr().out)["verdict"] == "differs in constants, numbers"


@pytest.fixture
def strangers(tmp_path) -> tuple[Path, Path, Path]:
    """Plain TorchScript files: a model, the same again, and one with another activation."""
    paths = []
    for i, activation in enumerate((nn.Tanh(), nn.Tanh(), nn.Sigmoid())):
        torch.manual_seed(0)
        with ignore_deprecations():
            torch.jit.script(nn.Sequential(nn.Linear(3, 4), activation)).save(str(tmp_path / f"{i}.pt"))
        paths.append(tmp_path / f"{i}.pt")
    return paths[0], paths[1], paths[2]


def test_files_of_strangers(strangers):
    item, again, other = strangers
    assert torchferry.diff(item, again).verdict in ("same graph", "same file")
    result = torchferry.diff(item, other)
    assert result.verdict == "differs in graph"
    assert "aten::sigmoid" in result.changes.nodes[0].what
    assert result.changes.nodes[0].module == "1"
    assert len([n for n in result.notes if "no contract" in n]) == 2
    with pytest.raises(UsageError, match="nothing to run both files on"):
        torchferry.diff(item, other, run=True)


def test_an_archive_against_a_file_of_a_stranger(export, tmp_path):
    item = export(Law(2.0), "one")
    with ignore_deprecations():
        plain = torch.jit.trace(lambda x: (2.0 * x).sin(), X["stretch"])
        torch.jit.save(plain, str(tmp_path / "plain.pt"))
    result = torchferry.diff(item, tmp_path / "plain.pt", run=True)
    assert result.verdict == "same numbers"
    assert any(c.kind == "gone" and c.method == "forward_batch" for c in result.changes.nodes)


def test_an_error_in_one_of_both_is_a_difference(export, tmp_path):
    item = export(Law(2.0), "one")
    with ignore_deprecations():
        torch.jit.save(torch.jit.trace(lambda x: (2.0 * x)[:3].sin(), X["stretch"]), str(tmp_path / "plain.pt"))
    result = torchferry.diff(item, tmp_path / "plain.pt", run=True)
    assert result.verdict == "differs in graph, numbers"
    assert any("shape" in a.comparison.reason for a in result.differing)


def test_cases_of_both_are_run(export):
    item, other = export(Law(2.0), "one"), export(Law(2.0, softening=True), "other")
    result = torchferry.diff(item, other, run=True)
    assert result.numbers
    names = {a.case for a in result.numbers}
    # The warmup inputs are the same in both, and are asked once.
    assert "warmup (first)" in names
    assert "warmup (second)" not in names


@pytest.mark.parametrize("damage", ["cut", "text"])
def test_a_damaged_file(damage, export, tmp_path):
    item = export(Law(2.0), "one")
    other = tmp_path / "other.pt"
    other.write_bytes(item.read_bytes()[:500] if damage == "cut" else b"no zip")
    with pytest.raises(ArchiveError):
        torchferry.diff(item, other)


def test_a_graph_that_is_not_the_contracts(export):
    item = export(Law(2.0), "one")
    rewrite(item, lambda result: result.update({"extra/torchferry/graph.txt": b"# forward()\n"}), manifest=True)
    with pytest.raises(ArchiveError, match="names a different graph"):
        torchferry.diff(item, item)


def test_the_command(export, capfd):
    item, other = export(Law(2.0), "one"), export(Law(2.0, softening=True), "other")
    assert run(["diff", str(item), str(item)]) == 0
    assert capfd.readouterr().out.splitlines()[-1] == "same file"
    assert run(["diff", str(item), str(other), "--run"]) == 5
    text = capfd.readouterr().out
    assert text.splitlines()[-1] == "differs in graph, numbers"
    assert text.index("graph:") < text.index("numbers:")
    assert run(["diff", str(item), str(other), "--json"]) == 5
    report = json.loads(capfd.readouterr().out)
    assert report["same"] is False
    assert report["verdict"] == "differs in graph"


def test_inspect_shows_the_hash(capfd):
    assert run(["inspect", str(ARTIFACTS / "rates.pt")]) == 0
    contract = torchferry.load(ARTIFACTS / "rates.pt").contract
    assert f"Graph: sha256 {contract.graph}" in " ".join(capfd.readouterr().out.split())


def test_the_graph_command(capfd, tmp_path):
    assert run(["graph", str(ARTIFACTS / "rates.pt"), "--stage", "optimized", "--json"]) == 0
    report = json.loads(capfd.readouterr().out)
    assert (report["method"], report["stage"], report["nodes"]) == ("forward_batch", "optimized", 9)
    assert run(["graph", str(ARTIFACTS / "rates.pt"), "--passes", "--json"]) == 0
    assert len(json.loads(capfd.readouterr().out)) == 10
    assert run(["graph", str(ARTIFACTS / "rates.pt"), "--html", str(tmp_path / "eq.html")]) == 0
    assert (tmp_path / "eq.html").stat().st_size > 400_000
    for arguments, code, message in (
        (["--stage", "fused"], 2, "one of raw, profiling, optimized"),
        (["--method", "vjp"], 2, "there is no method 'vjp'"),
        (["--inputs", "nothing.pt"], 2, "the input file does not exist"),
        (["--html", str(tmp_path)], 2, "the output is a folder"),
    ):
        assert run(["graph", str(ARTIFACTS / "rates.pt"), *arguments]) == code
        assert message in capfd.readouterr().err
    assert run(["graph", str(ROOT / "README.md")]) == 4


def test_a_file_says_its_torch_where_it_does_not_load(export, tmp_path):
    item = export(Law(2.0), "one")
    change_contract(item, lambda raw: raw["created_with"].update(torch="9.9.9"))

    def unknown(result):
        name = next(n for n in result if n.endswith(".py") and b"torch.sin" in result[n])
        result[name] = result[name].replace(b"torch.sin", b"torch.sin_of_9")

    rewrite(item, unknown, manifest=True)
    with pytest.raises(ArchiveError, match="does not load") as caught:
        torchferry.diff(item, item)
    assert "9.9.9" in caught.value.details["expected"]


def test_another_way_to_call_the_model_is_a_difference(tmp_path):
    path = Path(shutil.copy(ARTIFACTS / "rates.pt", tmp_path / "other.pt"))
    nodes = [{"kind": "dict", "keys": ["x", "y"]}, {"kind": "variable", "name": "a"}, {"kind": "fixed", "value": "1"}]
    change_contract(path, lambda contract: contract.update(arguments=nodes, positional=1))
    by_position = Path(shutil.copy(path, tmp_path / "by_position.pt"))
    change_contract(by_position, lambda contract: contract.update(positional=2))
    lines = torchferry.diff(ARTIFACTS / "rates.pt", path).lines()
    assert "contract: arguments: \"{'x': a, 'y': 1}\"; it was ''" in lines
    assert torchferry.diff(path, by_position).lines() == ["contract: positional: 2; it was 1"]

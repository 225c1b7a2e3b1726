"""Packages of a writer that makes mistakes: verification finds each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from project import ROOT, export_unverified, mark_rest_thorough

import torchferry
from exporter.archive.formats import FORMATS
from exporter.backends.torch_export import archive_programs
from exporter.backends.torch_export.program import Program
from exporter.common.errors import MismatchError
from runtime_checks.report import FAILED

MODELS = ROOT / "tests" / "support" / "onnx_models.py"


def edited(edit: Callable[[Any, Any], object]) -> Callable[..., Program]:
    """The writer's program, changed as a faulty writer would."""
    original = archive_programs.export_program

    def program(*arguments: Any) -> Program:
        result = original(*arguments)
        for node in list(result.exported.graph.nodes):
            edit(result.exported.graph, node)
        result.exported.graph_module.recompile()
        return result

    return program


aten: Any = torch.ops.aten


def perturb(graph, node) -> None:
    """A number of the activation."""
    if node.target is aten.gelu.default:
        with graph.inserting_before(node):
            other = graph.call_function(aten.mul.Scalar, (node.args[0], 1.001))
        other.meta = dict(node.meta)
        node.args = (other,)


def half_away_from_zero(graph, node) -> None:
    if node.target is aten.round.default:
        with graph.inserting_before(node):
            shifted = graph.call_function(aten.add.Scalar, (node.args[0], 0.5))
        shifted.meta = dict(node.meta)
        node.target, node.args = aten.floor.default, (shifted,)


def by_tanh(graph, node) -> None:
    if node.target is aten.gelu.default:
        node.kwargs = {"approximate": "tanh"}


def truncate(graph, node) -> None:
    if "rounding_mode" in node.kwargs:
        node.kwargs = {"rounding_mode": "trunc"}


def swap(graph, node) -> None:
    if node.target is aten.sub.Tensor:
        node.args = node.args[::-1]


FAULTS = (perturb, half_away_from_zero, by_tanh, truncate, swap)


@pytest.fixture(scope="module")
def rounded(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("rounded") / "rounded.pt"
    export_unverified(f"{MODELS}:rounded", path)
    return path


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("fault", "kind"),
    mark_rest_thorough([(fault, "program") for fault in FAULTS], [(fault, "pt2") for fault in FAULTS]),
)
def test_planted_faults(fault, kind, rounded, tmp_path, monkeypatch):
    monkeypatch.setattr(archive_programs, "export_program", edited(fault))
    with pytest.raises(MismatchError) as caught:
        torchferry.convert(rounded, tmp_path / f"m{FORMATS[kind].suffix}", to=kind)
    assert "stored cases" in {c.check for c in caught.value.report.checks if c.verdict == FAILED}
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", mark_rest_thorough(["program"], ["pt2"]))
def test_a_fixed_batch(kind, rounded, tmp_path, monkeypatch):
    original = archive_programs.export_program

    def program(*arguments: Any) -> Program:
        result = original(*arguments)
        example = [torch.ones(9), torch.ones(9, dtype=torch.int64), torch.ones(9)]
        fixed = torch.export.export(result.exported.module(), tuple(example), strict=False)
        return Program(result.method, fixed, result.parameters)

    monkeypatch.setattr(archive_programs, "export_program", program)
    with pytest.raises(MismatchError) as caught:
        torchferry.convert(rounded, tmp_path / f"m{FORMATS[kind].suffix}", to=kind)
    assert "batch sizes" in {c.check for c in caught.value.report.checks if c.verdict == FAILED}

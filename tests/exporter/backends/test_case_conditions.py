"""Cases of extreme magnitude whose numbers are rounding errors are left out of other formats, and said."""

from __future__ import annotations

import pytest
import torch
from project import mark_thorough_after

import torchferry
from exporter.archive import pt_archive
from exporter.backends.case_conditions import leave_out_vague_cases
from exporter.graph.loading import ScriptedModule, load_module
from runtime_checks.containers import open_container

pytestmark = pytest.mark.usefixtures("file_without_the_gate")

X = torch.linspace(0.1, 0.4, 6, dtype=torch.float64).reshape(2, 3)


def cancel(x):
    """The difference has no digit left where the numbers are large."""
    return (x + 1.0) * (x + 1.0) - x * x - 2.0 * x


def add(x):
    return 2.0 * x + 1.0


def read_names(path):
    return {case.name for case in pt_archive.read(path).cases()}


@pytest.mark.parametrize("name", mark_thorough_after(1, ["m.c", "m.program.pt2", "m.onnx"]))
def test_rounding_errors_are_no_cases_of_another_format(name, tmp_path):
    torchferry.export(cancel, inputs={"x": X}, output=tmp_path / "m.pt")
    assert "large_1e+12" in read_names(tmp_path / "m.pt")
    output = torchferry.convert(tmp_path / "m.pt", to=name.split(".")[1]).path
    findings = [f.what for f in open_container(output).contract.findings]
    assert "cases left out: large_1e+12" in findings
    torchferry.export(add, inputs={"x": X}, output=tmp_path / "n.pt")
    output = torchferry.convert(tmp_path / "n.pt", to=name.split(".")[1]).path
    assert not [f for f in open_container(output).contract.findings if "left out" in f.what]


def test_ordinary_cases_stay(tmp_path):
    torchferry.export(cancel, inputs={"x": X}, output=tmp_path / "m.pt")
    archive = pt_archive.read(tmp_path / "m.pt")
    cases = archive.cases()
    _, kept, names = leave_out_vague_cases(ScriptedModule(load_module(archive.path)), archive.contract, cases, "m.pt")
    assert names == ["large_1e+12"]
    assert [case.name for case in kept] == [case.name for case in cases if case.name != "large_1e+12"]

"""The house: eight floors, who may see whom, and that tests stand where the code stands."""

from __future__ import annotations

import sys
from pathlib import Path

import house
import pytest
from project import ROOT

FILES = house.list_files()
MEASURES = house.measure()


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_rules_hold(path: Path):
    assert house.find_broken_rules(path.relative_to(ROOT).as_posix(), path.read_text()) == []


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("runtime_checks/verification.py", "from exporter.model.eager.warmup import warm_up"),
        ("runtime_checks/verification.py", "from exporter.graph import reader"),
        ("runtime_checks/model.py", "def f():\n    import neml2"),
        ("runtime_checks/model.py", "import torchferry"),
        ("exporter/soundness/gate.py", "import runtime_checks.verification, torchferry.pipeline"),
        ("exporter/backends/backend.py", "from exporter.capture import tracing"),
        ("exporter/archive/pt_archive.py", "from exporter.model import source"),
        ("exporter/common/errors.py", "from exporter.archive import contract"),
        ("exporter/graph/reader.py", "from exporter.model.source import Source"),
        ("exporter/model/source.py", "import neml2.types"),
        ("exporter/archive/contract.py", "import torch"),
        ("torchferry/sweep.py", "from exporter.__main__ import main"),
    ],
)
def test_a_planted_import_is_seen(path, line):
    assert house.find_broken_rules(path, line)


def test_allowed_imports_are_allowed():
    assert house.find_broken_rules("runtime_checks/verification.py", "from exporter.archive import pt_archive") == []
    assert (
        house.find_broken_rules("torchferry/cli/verify.py", "import runtime_checks.verification, exporter.capture")
        == []
    )
    assert house.find_broken_rules("exporter/frontends/neml2/input_file.py", "import neml2") == []


def test_a_planted_circle_is_seen():
    assert house.find_circle({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == ["b", "c"]


@pytest.mark.parametrize("name", ["divided", "_held", "called_instead", "standing_in", "written_back"])
def test_bare_participles_are_seen(name):
    assert house.is_participle(name)


@pytest.mark.parametrize("name", ["lower_div", "read", "embed", "need", "__enter__", "gradients_kept", "string"])
def test_other_names_are_none(name):
    assert not house.is_participle(name)


def test_docstrings_that_start_with_a_verb():
    assert house.starts_with_verb("Return the outputs.")
    assert not any(map(house.starts_with_verb, ["The outputs.", "Whether it holds.", "Of a block."]))


@pytest.mark.parametrize("measure", list(MEASURES))
def test_the_house_is_as_it_is_drawn(measure):
    """What ``make lint`` holds: no loose file, no circle, no arrow back up, verbs."""
    assert MEASURES[measure][1] == []


def test_planted_faults_are_measured(tmp_path):
    folder = tmp_path / "exporter" / "common"
    folder.mkdir(parents=True)
    (tmp_path / "exporter" / "loose.py").write_text("")
    lines = "    import shutil\n    made = 1\n" + "\n".join(f"    x{i} = {i}" for i in range(70))
    (folder / "a.py").write_text(
        f'import exporter.archive.b\n\n\ndef divided(a, b, c, d, e, f, g, h, i):\n    """The sum."""\n{lines}\n'
    )
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_nothing.py").write_text('"""Tests that a script took away."""\n')
    (tmp_path / "exporter" / "archive").mkdir()
    (tmp_path / "exporter" / "archive" / "b.py").write_text("import exporter.common.a\n")
    counts = {name: len(places) for name, (_, places) in house.measure(tmp_path).items()}
    assert counts == {
        "floors": 0,
        "loose files in exporter/": 1,
        "files in a circle": 2,
        "imports of a floor that is not lower": 1,
        "imports inside functions of light modules": 1,
        "functions named by a bare participle": 1,
        "variables whose name says nothing": 1,
        "lines of the longest function": 1,
        "parameters of the function with most": 1,
        "public docstrings that start with a verb": 1,
        "lines of the longest file": 0,
        "files of tests": 1,
        "lines of Python": 0,
    }


@pytest.mark.parametrize("path", sorted((ROOT / "runtime_checks/runners/children").glob("*.py")), ids=lambda p: p.name)
def test_the_isolated_processes_import_nothing_of_ours(path):
    tops = {name.partition(".")[0] for name in house.list_imports(path.read_text())}
    assert tops <= {*sys.stdlib_module_names, "torch", "numpy", "onnx", "onnxruntime", "landlockpy"}


def test_tests_stand_where_the_code_stands():
    """A folder of tests has the name of a package; what tests several packages is in ``integration``, or in
    ``hostile`` if it is about the files of strangers."""
    packages = {p.parent.relative_to(ROOT).as_posix() for p in FILES}
    folders = {p.parent.relative_to(ROOT / "tests").as_posix() for p in ROOT.glob("tests/**/test_*.py")}
    others = {".", "integration", "hostile", "docs", "exams", "runtime_checks/native", "exporter/capture/derivatives"}
    assert {f for f in folders if f not in others and "hazards" not in f} <= packages

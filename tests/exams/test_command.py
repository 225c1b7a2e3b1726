"""``python -m exams``: what it takes, and what it says of what it does not know."""

from __future__ import annotations

import subprocess
import sys

import pytest
from project import ROOT

from exams import __main__ as command
from exams.__main__ import SUITES
from exams.suites import programs
from exams.tables import Row, read_table
from exporter.common.errors import MissingRuntimeError


def run_exams(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "exams", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )


@pytest.mark.thorough
def test_without_a_suite_all_are_run():
    done = run_exams("--only", "no case has this name")
    assert done.returncode == 0, done.stderr
    names = [line.partition(":")[0] for line in done.stdout.splitlines() if "0 cases;" in line]
    assert names == list(SUITES)


def test_an_unknown_suite_is_named():
    done = run_exams("operator")
    assert done.returncode == 2
    assert (
        "there is no suite operator: there are operators, modules, torch_examples, onnx_nodes, odes, networks, programs"
        in done.stderr
    )


@pytest.fixture
def asked(monkeypatch, tmp_path):
    """Run no case: the list of those that would be run. Tables and the page go to another place."""
    cases = []
    monkeypatch.setattr(
        command, "run_suite", lambda tasks, *rest: cases.extend(c for t in tasks for c in t.cases) or []
    )
    monkeypatch.setattr(command, "write_table", lambda *arguments: None)
    monkeypatch.setattr(command, "PAGE", tmp_path / "page.md")
    rows = {name: row for name, row in read_table("odes").items() if name != "HIRES"}
    monkeypatch.setattr(command, "read_table", lambda suite: rows)
    return cases


def call(monkeypatch, *arguments):
    monkeypatch.setattr("sys.argv", ["exams", *arguments])
    return command.main()


def test_packages_that_cannot_be_installed(monkeypatch, capsys, asked):
    """The other suites run; this one says that it did not, and counts."""

    def refuse(requirements):
        raise MissingRuntimeError("pip cannot install the packages of a suite")

    monkeypatch.setattr(command, "ensure_packages", refuse)
    assert call(monkeypatch, "networks", "odes", "--new") == 1
    assert "networks: not run: pip cannot install" in capsys.readouterr().out
    assert asked == ["HIRES"]


def test_cases_with_a_row_and_those_without(monkeypatch, asked):
    assert call(monkeypatch, "odes", "--new") == 0
    assert asked == ["HIRES"]
    asked.clear()
    call(monkeypatch, "odes", "--update")
    assert sorted(asked) == ["OREGO", "ROBER", "VDPOL"]


def test_seeds_without_a_fault_are_recorded(monkeypatch, capsys, tmp_path):
    """Those that were run are not run again; a wrong one counts as not run, and its program is printed."""
    written = []
    rows = [Row("1 whole", 24, {"pt": "verified"}), Row("0 batch", 24, {"pt": "wrong 3: off by 2"})]
    asked = []
    run = lambda tasks, *rest: asked.extend(c for t in tasks for c in t.cases) or rows  # noqa: E731
    monkeypatch.setattr(command, "run_suite", run)
    monkeypatch.setattr(command, "read_table", lambda suite: {"0 whole": Row("0 whole", 24, {"pt": "verified"})})
    monkeypatch.setattr(command, "write_table", lambda suite, rows: written.extend(row.case for row in rows))
    monkeypatch.setattr(command, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(programs, "shrink", lambda case, pipeline: "the least program")
    assert call(monkeypatch, "programs", "--seeds", "2", "--new") == 1
    first, rows[1] = rows[1], Row("0 whole", 24, {"pt": "wrong 3: off by 2"})
    written.clear()
    assert call(monkeypatch, "programs", "--seeds", "2", "--update") == 1
    assert written == ["1 whole"]
    rows[1] = first
    written.clear()
    asked.clear()
    capsys.readouterr()
    assert call(monkeypatch, "programs", "--seeds", "2", "--new") == 1
    assert asked == ["1 whole", "0 batch", "1 batch"]
    assert written == ["0 whole", "1 whole"]
    assert "0 batch, pt: wrong 3: off by 2\nthe least program" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("option", "message"), [(["--pipeline", "onnx"], "without --pipeline"), (["--samples", "20"], "without --update")]
)
def test_new_rows_have_all_cells_of_the_usual_samples(option, message):
    done = run_exams("operators", "--new", *option)
    assert done.returncode == 2
    assert message in done.stderr

"""``python -m exams``: what it takes, and what it says of what it does not know."""

from __future__ import annotations

import subprocess
import sys

from project import ROOT

from exams import __main__ as command
from exams.__main__ import SUITES
from exams.ode_problems import PROBLEMS
from exams.tables import read_table
from exporter.common.errors import MissingRuntimeError


def run_exams(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "exams", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_without_a_suite_all_are_run():
    done = run_exams("--only", "no case has this name")
    assert done.returncode == 0, done.stderr
    names = [line.partition(":")[0] for line in done.stdout.splitlines() if "0 cases;" in line]
    assert names == list(SUITES)


def test_an_unknown_suite_is_named():
    done = run_exams("operator")
    assert done.returncode == 2
    assert (
        "there is no suite operator: there are operators, modules, torch_examples, odes, networks, programs"
        in done.stderr
    )


def test_packages_that_cannot_be_installed(monkeypatch, capsys):
    """The other suites run; this one says that it did not, and counts."""

    def refuse(requirements):
        raise MissingRuntimeError("pip cannot install the packages of a suite")

    monkeypatch.setattr(command, "ensure_packages", refuse)
    monkeypatch.setattr("sys.argv", ["exams", "networks", "--only", "torchdiffeq*", "--update"])
    assert command.main() == 1
    assert "networks: not run: pip cannot install" in capsys.readouterr().out


def test_new_rows_have_all_cells():
    done = run_exams("operators", "--new", "--pipeline", "onnx")
    assert done.returncode == 2
    assert "--new without --pipeline" in done.stderr


def test_new_cases_alone_are_run(monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(command, "run_suite", lambda tasks, *rest: asked.extend(tasks) or [])
    monkeypatch.setattr(command, "write_table", lambda *arguments: None)
    monkeypatch.setattr(command.PAGE.__class__, "write_text", lambda *arguments, **options: 0)
    known = next(iter(read_table("odes")), "")
    monkeypatch.setattr("sys.argv", ["exams", "odes", "--new"])
    command.main()
    cases = {case for task in asked for case in task.cases}
    assert known not in cases
    assert cases == set(PROBLEMS) - set(read_table("odes"))

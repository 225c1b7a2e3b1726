"""``python -m exams``: what it takes, and what it says of what it does not know."""

from __future__ import annotations

import subprocess
import sys

from project import ROOT

from exams.__main__ import SUITES


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

"""Stages that run beside each other give what they give one after the other."""

from __future__ import annotations

import os
from typing import Any

import pytest
from cubic_models import update
from project import mark_thorough_after

import torchferry
from exporter.common.errors import WarmupError
from torchferry import contract_assembly, pipeline

pytestmark = pytest.mark.usefixtures("without_the_gate", "without_verification")


@pytest.mark.thorough
def test_the_number_of_jobs_leaves_no_trace(tmp_path):
    for jobs in (1, 2):
        torchferry.export(update(), output=tmp_path / f"{jobs}.pt", derivatives="all", jobs=jobs)
    assert (tmp_path / "1.pt").read_bytes() == (tmp_path / "2.pt").read_bytes()


@pytest.mark.parametrize("jobs", mark_thorough_after(1, [2, 1]))
def test_cases_are_made_once_and_beside_the_file(jobs, tmp_path, monkeypatch):
    calls = tmp_path / "calls"
    original = pipeline.make_cases

    def make(*arguments: Any) -> Any:
        with calls.open("a") as file:
            file.write(f"{os.getpid()}\n")
        return original(*arguments)

    monkeypatch.setattr(pipeline, "make_cases", make)
    torchferry.export(update(), output=tmp_path / "m.pt", jobs=jobs)
    (line,) = calls.read_text().splitlines()
    assert (int(line) == os.getpid()) == (jobs == 1)


@pytest.mark.parametrize("jobs", mark_thorough_after(1, [2, 1]))
def test_an_error_in_the_cases_leaves_no_file(jobs, tmp_path, monkeypatch):
    def fail(*arguments: Any) -> Any:
        raise WarmupError("as planted")

    monkeypatch.setattr(pipeline, "make_cases", fail)
    with pytest.raises(WarmupError, match="as planted"):
        torchferry.export(update(), output=tmp_path / "m.pt", jobs=jobs)
    assert list(tmp_path.iterdir()) == []


def test_tolerances_of_a_solver_are_computed_once(tmp_path, monkeypatch):
    original, calls = contract_assembly.solver_tolerances, list[int]()

    def compute(*arguments: Any) -> Any:
        calls.append(1)
        return original(*arguments)

    monkeypatch.setattr(contract_assembly, "solver_tolerances", compute)
    torchferry.export(update(), output=tmp_path / "m.pt", derivatives="all")
    assert calls == [1]

"""pytest's plugin for golden archives, as a user's test suite runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import ROOT
from tampering import change_contract

from exporter.capture.trace import quiet_deprecations

MODEL = """
import torch
from torch import nn


class Spring(nn.Module):
    def __init__(self):
        super().__init__()
        self.k = nn.Parameter(torch.tensor(2.0, dtype=torch.float64))

    def forward(self, stretch):
        return {"force": (self.k * stretch).sin()}


def make_model():
    return Spring(), {"stretch": torch.linspace(0, 1, 3, dtype=torch.float64)}
"""
TEST = """
import pytest


def test_spring(torchferry_golden):
    torchferry_golden("spring.py:make_model")


@pytest.mark.torchferry_golden(folder="elsewhere", name="soft")
def test_another_place(torchferry_golden):
    torchferry_golden("spring.py:make_model")
"""
# The gate and the fresh process take seconds, and are tested elsewhere.
CONFTEST = """
import pytest
from exporter import pipeline
from exporter.soundness import gate


@pytest.fixture
def torchferry_golden_export(monkeypatch):
    monkeypatch.setattr(gate, "_BEFORE", {})
    monkeypatch.setattr(gate, "_AFTER", {})
    return lambda source, **options: pipeline.export(source, verify=lambda *_: None, **options)
"""


@pytest.fixture
def suite(tmp_path) -> Path:
    for name, text in (("spring.py", MODEL), ("test_spring.py", TEST), ("conftest.py", CONFTEST)):
        (tmp_path / name).write_text(text)
    return tmp_path


def pytest_in(folder: Path, *arguments: str, ci: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "CI": ci, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_without_a_reference_it_fails_and_says_how_to_make_one(suite):
    done = pytest_in(suite)
    assert done.returncode == 1
    assert "there is no golden archive" in done.stdout
    assert "pytest 'test_spring.py::test_spring' --torchferry-update" in done.stdout
    assert not (suite / "goldens").exists()


@pytest.fixture
def held(suite) -> Path:
    done = pytest_in(suite, "--torchferry-update")
    assert done.returncode == 0, done.stdout
    assert sorted(p.relative_to(suite).as_posix() for p in suite.rglob("*.pt")) == [
        "elsewhere/soft.pt",
        "goldens/test_spring.pt",
    ]
    return suite


def test_a_change_is_said_and_accepted(held):
    done = pytest_in(held)
    assert done.returncode == 0, done.stdout
    before = (held / "goldens" / "test_spring.pt").read_bytes()
    (held / "spring.py").write_text(MODEL.replace(".sin()", ".tanh()"))
    done = pytest_in(held)
    assert done.returncode == 1
    assert "the model is not what its golden archive is: differs in graph, numbers" in done.stdout
    assert "aten::tanh" in done.stdout
    assert "spring.py:12" in done.stdout
    assert "to accept it: pytest 'test_spring.py::test_spring' --torchferry-update" in done.stdout
    assert (held / "goldens" / "test_spring.pt").read_bytes() == before
    assert pytest_in(held, "--torchferry-update").returncode == 0
    assert (held / "goldens" / "test_spring.pt").read_bytes() != before
    assert pytest_in(held).returncode == 0


def test_another_graph_of_the_same_numbers_fails(held):
    (held / "spring.py").write_text(MODEL.replace("(self.k * stretch).sin()", "-(-self.k * stretch).sin()"))
    done = pytest_in(held, "-k", "test_spring and not place")
    assert done.returncode == 1
    assert "its golden archive is: same numbers" in done.stdout
    assert "aten::neg" in done.stdout


def test_a_parameter_fails_with_its_largest_difference(held):
    (held / "spring.py").write_text(MODEL.replace("tensor(2.0", "tensor(2.125"))
    done = pytest_in(held, "test_spring.py::test_spring")
    assert done.returncode == 1
    assert "constant: k float64[]: 1 of its numbers differ, by at most 0.125" in done.stdout


def test_an_update_that_changes_nothing_leaves_the_file(held):
    golden = held / "goldens" / "test_spring.pt"
    os.utime(golden, (1, 1))
    assert pytest_in(held, "--torchferry-update").returncode == 0
    assert golden.stat().st_mtime == 1


@pytest.mark.parametrize("ci", ["true", "1"])
def test_in_ci_an_update_is_refused(held, ci):
    done = pytest_in(held, "--torchferry-update", ci=ci)
    assert done.returncode == 4
    assert "refused in CI" in done.stderr
    assert pytest_in(held, ci=ci).returncode == 0


def test_a_golden_of_a_newer_schema_is_refused_by_name(held):
    change_contract(held / "goldens" / "test_spring.pt", lambda raw: raw.update(schema=7))
    done = pytest_in(held, "test_spring.py::test_spring")
    assert done.returncode == 1
    assert "the archive is of schema 7" in done.stdout
    assert "goldens/test_spring.pt" in done.stdout


def test_a_golden_of_a_stranger(held):
    with quiet_deprecations():
        torch.jit.save(torch.jit.trace(torch.sin, torch.ones(2)), str(held / "goldens" / "test_spring.pt"))
    done = pytest_in(held, "test_spring.py::test_spring")
    assert done.returncode == 1
    assert "has no contract" in done.stdout


def test_a_marker_that_is_misspelt(suite):
    (suite / "test_spring.py").write_text(TEST.replace("folder=", "directory="))
    done = pytest_in(suite, "-k", "another_place")
    assert done.returncode == 1
    assert "takes folder and name" in done.stdout

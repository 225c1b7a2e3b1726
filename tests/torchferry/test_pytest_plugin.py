"""pytest's plugin for golden archives, as a user's test suite runs it."""

from __future__ import annotations

import os
import sys

import pytest
import torch
from tampering import change_contract

from exporter.common.torch_hooks import ignore_deprecations

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
import torchferry
from exporter.soundness import gate
from runtime_checks.file_verifier import FileVerifier


@pytest.fixture
def torchferry_golden_export(monkeypatch):
    monkeypatch.setattr(gate, "_BEFORE", {})
    monkeypatch.setattr(gate, "_AFTER", {})
    monkeypatch.setattr(FileVerifier, "verify", lambda *_, **__: None)
    return torchferry.export
"""


@pytest.fixture
def suite(pytester, monkeypatch) -> pytest.Pytester:
    """Run in this process: it has torch already, and one that forks fresh ones."""
    pytester.makepyfile(spring=MODEL, test_spring=TEST, conftest=CONFTEST)
    # The inner run would forget what it imports, and torch cannot be imported twice.
    monkeypatch.setattr(pytester, "_Pytester__take_sys_modules_snapshot", Kept)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("CI", "")
    return pytester


class Kept:
    """Instead of a snapshot of ``sys.modules``: only the suite's own modules are forgotten."""

    def restore(self) -> None:
        for name in ("spring", "test_spring", "conftest"):
            sys.modules.pop(name, None)


def pytest_in(suite: pytest.Pytester, *arguments: str) -> tuple[int, str]:
    """Exit code, and what was printed."""
    done = suite.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:xdist", "-W", "ignore", *arguments)
    return int(done.ret), "\n".join([*done.outlines, *done.errlines])


def test_without_a_reference_it_fails_and_says_how_to_make_one(suite):
    code, message = pytest_in(suite)
    assert code == 1
    assert "there is no golden archive" in message
    assert "pytest 'test_spring.py::test_spring' --torchferry-update" in message
    assert not (suite.path / "goldens").exists()


@pytest.fixture
def golden_suite(suite) -> pytest.Pytester:
    code, message = pytest_in(suite, "--torchferry-update")
    assert code == 0, message
    assert sorted(p.relative_to(suite.path).as_posix() for p in suite.path.rglob("*.pt")) == [
        "elsewhere/soft.pt",
        "goldens/test_spring/test_spring.pt",
    ]
    return suite


@pytest.mark.thorough
def test_a_change_is_said_and_accepted(golden_suite):
    code, message = pytest_in(golden_suite)
    assert code == 0, message
    golden = golden_suite.path / "goldens" / "test_spring" / "test_spring.pt"
    before = golden.read_bytes()
    os.utime(golden, (1, 1))
    assert pytest_in(golden_suite, "--torchferry-update")[0] == 0
    assert golden.stat().st_mtime == 1, "an update that changes nothing leaves the file"
    (golden_suite.path / "spring.py").write_text(MODEL.replace(".sin()", ".tanh()"))
    code, message = pytest_in(golden_suite)
    assert code == 1
    assert "the model is not what its golden archive is: differs in graph, numbers" in message
    assert "aten::tanh" in message
    assert "spring.py:12" in message
    assert "to accept it: pytest 'test_spring.py::test_spring' --torchferry-update" in message
    assert golden.read_bytes() == before
    assert pytest_in(golden_suite, "--torchferry-update")[0] == 0
    assert golden.read_bytes() != before
    assert pytest_in(golden_suite)[0] == 0


def test_another_graph_of_the_same_numbers_fails(golden_suite):
    (golden_suite.path / "spring.py").write_text(
        MODEL.replace("(self.k * stretch).sin()", "-(-self.k * stretch).sin()")
    )
    code, message = pytest_in(golden_suite, "-k", "test_spring and not place")
    assert code == 1
    assert "its golden archive is: same numbers" in message
    assert "aten::neg" in message


def test_a_parameter_fails_with_its_largest_difference(golden_suite):
    (golden_suite.path / "spring.py").write_text(MODEL.replace("tensor(2.0", "tensor(2.125"))
    code, message = pytest_in(golden_suite, "test_spring.py::test_spring")
    assert code == 1
    assert "constant: k float64[]: 1 of its numbers differ, by at most 0.125" in message


def test_in_ci_an_update_is_refused(golden_suite, monkeypatch):
    monkeypatch.setenv("CI", "true")
    code, message = pytest_in(golden_suite, "--torchferry-update")
    assert code == 4
    assert "refused in CI" in message
    assert pytest_in(golden_suite)[0] == 0


def test_a_golden_of_a_newer_schema_is_refused_by_name(golden_suite):
    change_contract(golden_suite.path / "goldens" / "test_spring" / "test_spring.pt", lambda raw: raw.update(schema=7))
    code, message = pytest_in(golden_suite, "test_spring.py::test_spring")
    assert code == 1
    assert "the archive has schema 7" in message
    assert "goldens/test_spring/test_spring.pt" in message


def test_a_golden_of_a_stranger(golden_suite):
    with ignore_deprecations():
        torch.jit.save(
            torch.jit.trace(torch.sin, torch.ones(2)),
            str(golden_suite.path / "goldens" / "test_spring" / "test_spring.pt"),
        )
    code, message = pytest_in(golden_suite, "test_spring.py::test_spring")
    assert code == 1
    assert "has no contract" in message


def test_a_marker_that_is_misspelt(suite):
    (suite.path / "test_spring.py").write_text(TEST.replace("folder=", "directory="))
    code, message = pytest_in(suite, "-k", "another_place")
    assert code == 1
    assert "takes folder and name" in message


def test_two_tests_have_two_archives(suite):
    law = 'torchferry_golden("spring.py:make_model")'
    (suite.path / "test_spring.py").write_text(
        "import pytest\n"
        f"class TestSoft:\n    def test_law(self, torchferry_golden):\n        {law}\n"
        f"class TestHard:\n    def test_law(self, torchferry_golden):\n        {law}\n"
        f"@pytest.mark.parametrize('x', ['a/b', 'a-b'])\ndef test_law(x, torchferry_golden):\n    {law}\n"
    )
    assert pytest_in(suite, "--torchferry-update")[0] == 0
    assert len(list(suite.path.rglob("*.pt"))) == 4


def test_one_archive_for_two_is_refused(suite):
    mark = "@pytest.mark.torchferry_golden(name='law')"
    law = 'torchferry_golden("spring.py:make_model")'
    (suite.path / "test_spring.py").write_text(
        f"import pytest\n{mark}\ndef test_a(torchferry_golden):\n    {law}\n"
        f"{mark}\ndef test_b(torchferry_golden):\n    pass\n"
        f"def test_twice(torchferry_golden):\n    {law}\n    {law}\n"
    )
    code, message = pytest_in(suite, "--torchferry-update")
    assert code == 1
    assert "two tests have one golden archive" in message
    assert "a test has one golden archive" in message

"""The runtime without TorchScript: an archive's records, evaluated in a process that has the reader alone of ours."""

from __future__ import annotations

import contextvars
import shutil
from pathlib import Path

import house
import pytest
import torch
from project import ARTIFACTS, ROOT, mark_thorough_after
from tampering import records, rewrite

import torchferry
from exporter.archive import pt_archive
from exporter.common.errors import MissingRuntimeError, RunError
from runtime_checks.report import FAILED, PASSED
from runtime_checks.runners import fork_server, python_runner, selection
from runtime_checks.runners.base import Call
from runtime_checks.runners.python_runner import RECORDS, PythonRunner
from torchferry.cli.app import run

NAMES = sorted(path.stem for path in ARTIFACTS.glob("*.pt"))
# The child of every Python runtime, in a torch without TorchScript.
CHILD_WITHOUT = """
import runpy
import sys

runpy.run_path({without!r})
runpy.run_path({child!r}, run_name="__main__")
"""


@pytest.fixture
def without_torch_script(monkeypatch, tmp_path):
    """Let processes that run files have a torch without TorchScript."""
    without = ROOT / "tests" / "support" / "no_torch_script" / "sitecustomize.py"
    child = tmp_path / "child.py"
    child.write_text(CHILD_WITHOUT.format(without=str(without), child=str(fork_server.CHILD)))
    monkeypatch.setattr(fork_server, "CHILD", child)
    # Not the server of all tests.
    monkeypatch.setattr(fork_server, "_SHARED", contextvars.ContextVar("another", default=None))


@pytest.mark.usefixtures("without_torch_script")
@pytest.mark.parametrize("name", mark_thorough_after(3, NAMES))
def test_every_archive_is_verified(name):
    (leg,) = torchferry.verify(ARTIFACTS / f"{name}.pt", runtimes="interpreter").legs
    verdicts = {check.check: check.verdict for check in leg.checks}
    assert FAILED not in verdicts.values()
    assert {c for c in ("stored cases", "source library absent", "default dtype") if verdicts[c] != PASSED} == set()


@pytest.mark.usefixtures("without_torch_script")
def test_torchscript_is_gone_there():
    """The control of the one above: the usual runtime does not load a file in such a process."""
    with pytest.raises(RunError, match=r"does not load(.|\n)*torch.jit"):
        torchferry.verify(ARTIFACTS / "rates.pt", runtimes="python")


@pytest.mark.thorough
@pytest.mark.usefixtures("without_torch_script")
@pytest.mark.parametrize(("format_name", "suffix"), [("program", "program.pt2"), ("pt2", "pt2")])
def test_other_formats_are_verified_there(format_name, suffix, tmp_path):
    converted = torchferry.convert(ARTIFACTS / "robertson.pt", tmp_path / f"r.{suffix}", to=format_name)
    assert converted.report.passed


@pytest.mark.usefixtures("without_torch_script")
def test_what_the_interpreter_does_not_read(tmp_path):
    """The error says where it is."""
    path = Path(shutil.copy(ARTIFACTS / "robertson.pt", tmp_path / "robertson.pt"))
    code, text = next((n, r) for n, r in records(path)[1].items() if n.endswith(".py") and b"torch.mul" in r)
    wrong = {code: text.replace(b"torch.mul", b"torch.mull", 1)}
    rewrite(path, lambda changed: changed.update(wrong), manifest=True)
    with pytest.raises(RunError, match=rf"without TorchScript(.|\n)*{Path(code).name}:\d+; got: aten::mull"):
        torchferry.verify(path, runtimes="interpreter")


def test_it_agrees_with_the_usual_runtime_to_the_last_bit():
    path = ARTIFACTS / "return_map.pt"
    opened = pt_archive.read(path)
    calls = [Call(case.method, case.inputs) for case in opened.cases()]
    usual, other = (
        runner.run(path, opened.contract, calls).results
        for runner in (PythonRunner(), PythonRunner(name="interpreter", holds=RECORDS))
    )
    for a, b in zip(usual, other, strict=True):
        assert not a.error + b.error
        assert all(torch.equal(x, y) for x, y in zip(a.outputs, b.outputs, strict=True))


def test_the_process_has_the_reader_alone(tmp_path):
    path = ARTIFACTS / "rates.pt"
    opened = pt_archive.read(path)
    done = PythonRunner(name="interpreter", holds=RECORDS).run(path, opened.contract, [])
    assert done.evidence["foreign_modules"] == []
    refused = done.evidence["refused"]
    assert isinstance(refused, dict)
    # The floor of models is refused in it, and is there in all other processes.
    assert refused["exporter.model"] != "imported"
    assert "neml2" in refused
    assert "exporter" not in refused
    assert not any(outcome == "imported" for outcome in refused.values())


def test_the_reader_is_the_floors_that_see_files_alone():
    (package, parts) = next(iter(python_runner._FLOORS.items()))
    assert tuple(f"{package}.{part}" for part in parts) == house.OF_FILES


def test_a_planted_fault_is_seen(tmp_path, capfd):
    path = Path(shutil.copy(ARTIFACTS / "robertson.pt", tmp_path / "robertson.pt"))
    code, text = next((n, r) for n, r in records(path)[1].items() if n.endswith(".py") and b"torch.mul" in r)
    wrong = {code: text.replace(b"torch.mul", b"torch.div", 1)}
    rewrite(path, lambda changed: changed.update(wrong), manifest=True)
    assert run(["verify", str(path), "--runtime", "interpreter"]) == 5
    assert "stored cases" in capfd.readouterr().out


def test_the_usual_runtime_of_a_torch_without_torchscript(monkeypatch):
    monkeypatch.setattr(selection, "HAS_TORCH_SCRIPT", False)
    (leg,) = torchferry.verify(ARTIFACTS / "robertson.pt").legs
    assert (leg.runtime, leg.device) == ("interpreter", "cpu")

    def refuse() -> None:
        raise MissingRuntimeError("this torch has no TorchScript")

    monkeypatch.setattr(selection, "require_torch_script", refuse)
    with pytest.raises(MissingRuntimeError, match="no TorchScript"):
        torchferry.verify(ARTIFACTS / "robertson.pt", runtimes="python")


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_on_a_gpu():
    report = torchferry.verify(ARTIFACTS / "return_map.pt", runtimes="interpreter", devices="cuda")
    assert report.passed

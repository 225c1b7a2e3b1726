"""Archives under other versions of torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from project import ROOT
from tampering import change_cases

from exporter.common.errors import MismatchError, MissingRuntimeError, UsageError
from runtime_checks import compatibility, torch_environments
from runtime_checks.compatibility import BROKEN, DIFFERS, NOT_THERE, OTHER, SAME, UNKNOWN, VERIFIED
from runtime_checks.compatibility import run_compatibility_checks as checked
from torchferry.cli.app import run

pytestmark = pytest.mark.thorough

RATES = ROOT / "artifacts" / "rates.pt"
HERE = torch.__version__.partition("+")[0]


@pytest.fixture
def this_torch(monkeypatch):
    """An environment that is there: the one of the tests. Making one takes a minute; ``torchferry compat`` does."""
    monkeypatch.setattr(compatibility, "ensure_python", lambda *_, **__: Path(sys.executable))


def test_an_archive_is_verified_and_its_graph_read_there(this_torch):
    (row,) = checked([RATES], [HERE]).rows
    assert (row.verdict, row.graph, row.torch) == (VERIFIED, SAME, HERE)


def test_numbers_that_differ_are_an_error(this_torch, tmp_path):
    path = tmp_path / "rates.pt"
    path.write_bytes(RATES.read_bytes())

    def off(cases):
        cases["batch_7/forward/out/0"] += 1e-3

    change_cases(path, off)
    result = checked([RATES, path], [HERE])
    assert [row.verdict for row in result.rows] == [VERIFIED, DIFFERS]
    assert "stored cases" in result.rows[1].detail
    with pytest.raises(MismatchError, match="fails under torch"):
        result.raise_if_failed()


def test_another_torch_than_was_asked_for_counts_as_broken(this_torch):
    (row,) = checked([RATES], ["9.9.9"]).rows
    assert row.verdict == BROKEN
    assert f"it ran under torch {torch.__version__}" in row.detail


def test_a_version_may_leave_its_last_number_open(this_torch):
    (row,) = checked([RATES], [HERE.rpartition(".")[0]]).rows
    assert row.verdict == VERIFIED
    (row,) = checked([RATES], ["2.1"]).rows
    assert row.verdict == BROKEN


def test_another_graph_there_is_said(this_torch, monkeypatch):
    monkeypatch.setattr(compatibility, "_HASH", "print('0' * 64)")
    (row,) = checked([RATES], [HERE]).rows
    assert (row.verdict, row.graph) == (VERIFIED, OTHER)


def test_the_process_that_reads_the_graph_is_confined(this_torch, monkeypatch, tmp_path):
    pytest.importorskip("landlockpy", reason="Landlock is Linux's")
    acts = f"\nPath({str(tmp_path / 'made')!r}).touch()"
    for script, graph, is_made in (
        (compatibility._HASH + acts, UNKNOWN, False),
        # The control.
        (compatibility._HASH.replace("confine(sys.argv[2])", "") + acts, SAME, True),
    ):
        monkeypatch.setattr(compatibility, "_HASH", script)
        assert checked([RATES], [HERE]).rows[0].graph == graph
        assert (tmp_path / "made").exists() == is_made


def test_no_thread_begins_before_that_process_is_confined(this_torch, monkeypatch):
    check = "assert not any('threads' in text for text in confine(sys.argv[2])['missing'])"
    monkeypatch.setattr(compatibility, "_HASH", compatibility._HASH.replace("confine(sys.argv[2])", check))
    assert checked([RATES], [HERE]).rows[0].graph == SAME


def test_a_graph_that_takes_too_long(this_torch, monkeypatch):
    monkeypatch.setattr(compatibility, "_HASH", "import time; time.sleep(60)")
    monkeypatch.setattr(compatibility, "TIME_LIMIT", 0.5)
    assert checked([RATES], [HERE]).rows[0].graph == UNKNOWN


def test_a_version_that_cannot_be_got_is_said_and_is_no_success(monkeypatch):
    def refused(torch: str, **_):
        raise MissingRuntimeError(f"the package index has no build of torch {torch} for CPUs", got="19 packages")

    monkeypatch.setattr(compatibility, "ensure_python", refused)
    result = checked([RATES], ["2.10.0"])
    assert result.rows[0].verdict == NOT_THERE
    assert not result.passed
    with pytest.raises(MissingRuntimeError, match=r"torch 2\.10\.0 is not available"):
        result.raise_if_failed()


def fake_pip(names: list[str], code: int = 0):
    """What ``pip install --dry-run --report`` would resolve to, without a network."""

    def run(command, **_):
        if "--report" in command and not code:
            report = Path(command[command.index("--report") + 1])
            report.write_text(json.dumps({"install": [{"metadata": {"name": n}} for n in names]}))
        return subprocess.CompletedProcess(command, code, "", "ERROR: No matching distribution found for torch==2.99.0")

    return run


def test_a_build_for_gpus_is_not_taken_unasked(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHFERRY_CACHE", str(tmp_path))
    monkeypatch.setattr(torch_environments.subprocess, "run", fake_pip(["torch", "sympy", "nvidia-cublas", "triton"]))
    with pytest.raises(MissingRuntimeError, match=r"no build of torch 2\.10\.0 for CPUs") as caught:
        torch_environments.ensure_python("2.10.0")
    assert "--any-build" in caught.value.details["mend"]
    assert not list(tmp_path.rglob("ready.txt"))


def test_a_version_that_the_index_does_not_have(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHFERRY_CACHE", str(tmp_path))
    monkeypatch.setattr(torch_environments.subprocess, "run", fake_pip([], code=1))
    with pytest.raises(MissingRuntimeError, match=r"torch 2\.99\.0 could not be installed") as caught:
        torch_environments.ensure_python("2.99.0")
    assert "No matching distribution" in caught.value.details["got"]


@pytest.mark.parametrize("version", ["", "2.13; rm", "../up"])
def test_what_is_no_version(version):
    with pytest.raises(UsageError, match="not a version of torch"):
        torch_environments.ensure_python(version)


def test_an_interpreter_that_is_not_there(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHFERRY_CACHE", str(tmp_path))
    with pytest.raises(MissingRuntimeError, match="cannot be started"):
        torch_environments.ensure_python("2.13.0", python=tmp_path / "python")


def test_the_command(this_torch, capsys, tmp_path):
    assert run(["compat", str(RATES), "--torch", HERE]) == 0
    assert "verified" in capsys.readouterr().out
    assert run(["compat", str(RATES), "--torch", HERE, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["passed"] is True
    (tmp_path / "text.pt").write_text("no archive")
    assert run(["compat", str(tmp_path / "text.pt"), "--torch", HERE]) == 4

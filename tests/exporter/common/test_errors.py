"""Errors: what they say, and those that another process has raised."""

import ast
import pickle

import pytest
import torch
from project import ROOT

from exporter.archive.contract import Finding
from exporter.common.errors import MismatchError, UnsoundError, summarize_error


def test_an_error_of_another_process_keeps_all_that_it_carries():
    error = UnsoundError("a branch", check="data read", where="model.py:3", got="bool()")
    error.findings = (Finding("data read", "a branch", "model.py:3", severity="unsound"),)
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.details) == (UnsoundError, str(error), error.details)
    assert copy.findings == error.findings
    mismatch = MismatchError("numbers differ")
    mismatch.report = {"passed": False}
    assert pickle.loads(pickle.dumps(mismatch)).report == mismatch.report


def list_without_hint(source: str) -> list[str]:
    """Wrong usages in a source whose message says neither what is expected nor how to mend it."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    usages = [
        c for c in calls if getattr(c.func, "id", "") in ("UsageError", "SourceError", "OutputError", "TrustError")
    ]
    return [ast.unparse(c) for c in usages if not {k.arg for k in c.keywords} & {"mend", "expected"}]


def test_every_wrong_usage_has_a_hint():
    files = [
        path for package in ("exporter", "runtime_checks", "torchferry") for path in (ROOT / package).rglob("*.py")
    ]
    assert {str(path): calls for path in files if (calls := list_without_hint(path.read_text()))} == {}
    assert list_without_hint('raise UsageError("wrong", got="x")') == ["UsageError('wrong', got='x')"]


def test_an_error_of_torchscript_is_told_by_what_happened():
    """Not by the first line, which is the same for all."""
    unit = torch.jit.CompilationUnit("def f(x: Tensor) -> Tensor:\n  assert 1 > 2, 'as planted'\n  return x\n")
    with pytest.raises(torch.jit.Error) as caught:
        unit.f(torch.ones(1))
    assert summarize_error(caught.value).endswith("AssertionError: as planted")
    assert summarize_error(ValueError("one\ntwo")) == "ValueError: one"

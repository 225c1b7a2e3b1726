"""Errors that another process has raised."""

import pickle

from exporter.archive.contract import Finding
from exporter.common.errors import MismatchError, UnsoundError


def test_an_error_of_another_process_keeps_all_that_it_carries():
    error = UnsoundError("a branch", check="data read", where="model.py:3", got="bool()")
    error.findings = (Finding("data read", "a branch", "model.py:3", severity="unsound"),)
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.details) == (UnsoundError, str(error), error.details)
    assert copy.findings == error.findings
    mismatch = MismatchError("numbers differ")
    mismatch.report = {"passed": False}
    assert pickle.loads(pickle.dumps(mismatch)).report == mismatch.report

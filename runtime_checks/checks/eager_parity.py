"""Checks of the archive against numbers of eager mode: stored ones, and fresh ones that an export brings."""

from __future__ import annotations

from exporter.archive.cases import Cases, ReferenceCase
from runtime_checks.checks.expectation import Expectation, NotRun
from runtime_checks.runners.base import Call

STORED, FRESH, DTYPE = "stored cases", "fresh inputs", "default dtype"


def stored_case_checks(cases: Cases) -> list[Expectation]:
    """Plan a check for each case; runtimes with torch run it under default dtype float32."""
    return [_expect(STORED, case) for case in cases]


def plan_default_dtype_checks(cases: Cases) -> list[Expectation]:
    """Plan the first case under default dtype float64: the loader's default must not matter."""
    case = cases[0]
    return [Expectation(DTYPE, "float64", Call(case.method, case.inputs, "float64"), case.outputs)]


def plan_fresh_checks(cases: Cases | None) -> list[Expectation] | NotRun:
    """Plan a check for each fresh case, or say that there is none."""
    if cases is None:
        return NotRun(FRESH, "needs the model itself: runs as part of `torchferry export`")
    return [_expect(FRESH, case) for case in cases]


def _expect(check: str, case: ReferenceCase) -> Expectation:
    return Expectation(check, case.name, Call(case.method, case.inputs), case.outputs)

"""The archive against numbers of eager mode: those that it carries, and fresh ones that an export brings."""

from __future__ import annotations

from collections.abc import Sequence

from exporter.archive import Case
from runtime_checks.checks.expectation import Expectation, NotRun
from runtime_checks.runners.base import Call

STORED, FRESH = "stored cases", "fresh inputs"


def stored(cases: Sequence[Case]) -> list[Expectation]:
    return [_expect(STORED, case) for case in cases]


def fresh(cases: Sequence[Case] | None) -> list[Expectation] | NotRun:
    if cases is None:
        return NotRun(FRESH, "needs the model itself: runs as part of `torchferry export`")
    return [_expect(FRESH, case) for case in cases]


def _expect(check: str, case: Case) -> Expectation:
    return Expectation(check, case.name, Call(case.method, case.inputs), case.outputs)

"""The archive against numbers of eager mode: those that it carries, and fresh ones that an export brings."""

from __future__ import annotations

from collections.abc import Sequence

from exporter.archive.cases import Case
from runtime_checks.checks.expectation import Expectation, NotRun
from runtime_checks.runners.base import Call

STORED, FRESH, DTYPE = "stored cases", "fresh inputs", "default dtype"


def stored(cases: Sequence[Case]) -> list[Expectation]:
    """Each case, where there is torch under default dtype float32."""
    return [_expect(STORED, case) for case in cases]


def default_dtype(cases: Sequence[Case]) -> list[Expectation]:
    """The first case under default dtype float64: the loader's default must not matter."""
    case = cases[0]
    return [Expectation(DTYPE, "float64", Call(case.method, case.inputs, "float64"), case.outputs)]


def fresh(cases: Sequence[Case] | None) -> list[Expectation] | NotRun:
    if cases is None:
        return NotRun(FRESH, "needs the model itself: runs as part of `torchferry export`")
    return [_expect(FRESH, case) for case in cases]


def _expect(check: str, case: Case) -> Expectation:
    return Expectation(check, case.name, Call(case.method, case.inputs), case.outputs)

"""Checks for a device other than the CPU: an archive that is moved there, large batches, an input left behind."""

from __future__ import annotations

import torch

from exporter.archive.cases import Cases, ReferenceCase
from exporter.archive.contract import Contract
from runtime_checks.checks.batch_invariance import LARGE_BATCHES
from runtime_checks.checks.expectation import Expectation, NotRun
from runtime_checks.runners.base import Call

MOVED, MISPLACED = "moved to the device", "input on the wrong device"
SIZES = (10_000, 100_000)


def plan_device_checks(contract: Contract, cases: Cases) -> list[Expectation | NotRun]:
    """Plan the calls that a device gets in addition to those of the CPU."""
    calls = [(case, Call(case.method, case.inputs, moved=True)) for case in cases]
    expectations: list[Expectation | NotRun] = [Expectation(MOVED, c.name, call, c.outputs) for c, call in calls]
    expectations += plan_large_batch_checks(contract, cases)
    for method in contract.methods:
        case = _find_ordinary_case(cases, method)
        if case is None or len(case.inputs) < 2:
            expectations.append(NotRun(MISPLACED, "needs a method of two inputs"))
            continue
        call = Call(method, case.inputs, left_on_cpu=len(case.inputs) - 1)
        expectations.append(Expectation(MISPLACED, "last input on cpu", call, case.outputs, refusal="device"))
    return expectations


def plan_large_batch_checks(contract: Contract, cases: Cases) -> list[Expectation | NotRun]:
    """Plan one call of each method at each large batch size."""
    expectations: list[Expectation | NotRun] = []
    for method in contract.methods:
        case = _find_ordinary_case(cases, method)
        if case is None or contract.batch.ndim == 0:
            expectations.append(NotRun(LARGE_BATCHES, "does not apply: the contract's shapes are whole"))
        elif contract.batch.has_large:
            expectations += [_repeat_rows(case, rows) for rows in SIZES]
    return expectations


def _find_ordinary_case(cases: Cases, method: str) -> ReferenceCase | None:
    return next((c for c in cases if c.method == method and not c.is_extreme), None)


def _repeat_rows(case: ReferenceCase, rows: int) -> Expectation:
    def repeat(value: torch.Tensor) -> torch.Tensor:
        return value[torch.arange(rows) % value.shape[0]]

    inputs, outputs = (tuple(map(repeat, values)) for values in (case.inputs, case.outputs))
    return Expectation(LARGE_BATCHES, f"batch {rows}", Call(case.method, inputs), outputs)

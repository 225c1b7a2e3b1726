"""What another device than the CPU adds: an archive that is moved there, large batches, an input left behind."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from exporter.archive.cases import EXTREMES, Case
from exporter.archive.contract import Contract
from runtime_checks.checks.expectation import Expectation, NotRun
from runtime_checks.runners.base import Call

MOVED, LARGE, MISPLACED = "moved to the device", "large batches", "input on the wrong device"
SIZES = (10_000, 100_000)


def on_device(contract: Contract, cases: Sequence[Case]) -> list[Expectation | NotRun]:
    """The calls of a device leg that a CPU leg does not have."""
    found: list[Expectation | NotRun] = [
        Expectation(MOVED, c.name, Call(c.method, c.inputs, moved=True), c.outputs) for c in cases
    ]
    found += large(contract, cases)
    for method in contract.methods:
        case = _ordinary(cases, method)
        if case is None or len(case.inputs) < 2:
            found.append(NotRun(MISPLACED, "needs a method of two inputs"))
            continue
        call = Call(method, case.inputs, left_on_cpu=len(case.inputs) - 1)
        found.append(Expectation(MISPLACED, "last input on cpu", call, case.outputs, refusal="device"))
    return found


def large(contract: Contract, cases: Sequence[Case]) -> list[Expectation | NotRun]:
    found: list[Expectation | NotRun] = []
    for method in contract.methods:
        case = _ordinary(cases, method)
        if case is None or contract.batch.ndim == 0:
            found.append(NotRun(LARGE, "does not apply: the contract's shapes are whole"))
        else:
            found += [_repeated(case, rows) for rows in SIZES]
    return found


def _ordinary(cases: Sequence[Case], method: str) -> Case | None:
    return next((c for c in cases if c.method == method and not c.name.startswith(EXTREMES)), None)


def _repeated(case: Case, rows: int) -> Expectation:
    def tall(value: torch.Tensor) -> torch.Tensor:
        return value[torch.arange(rows) % value.shape[0]]

    whole = dataclasses.replace(case, inputs=tuple(map(tall, case.inputs)), outputs=tuple(map(tall, case.outputs)))
    return Expectation(LARGE, f"batch {rows}", Call(case.method, whole.inputs), whole.outputs)

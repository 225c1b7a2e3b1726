"""A check that makes calls of its own and judges what they return together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from exporter.archive import EXTREMES, Case
from exporter.contract import Contract
from runtime_checks.report import CheckResult
from runtime_checks.runners.base import Call, Result, Tensors

# Points at which derivatives are looked at.
POINTS = 4


@dataclass(frozen=True)
class Probe:
    """``judge`` takes the results of ``calls``, in their order; ``further`` may have more to ask because of them."""

    calls: tuple[Call, ...]
    judge: Callable[[Sequence[Result]], CheckResult]
    further: Callable[[Sequence[Result]], Probe | None] = lambda _: None


def points(contract: Contract, cases: Sequence[Case], method: str = "forward") -> Tensors:
    """Rows of the ordinary stored cases as one batch; whole inputs of one case where there is no batch."""
    ordinary = [c for c in cases if c.method == method and not c.name.startswith(EXTREMES)]
    if not ordinary:
        return ()
    if contract.batch.ndim == 0:
        return ordinary[0].inputs
    rows = tuple(map(torch.cat, zip(*(c.inputs for c in ordinary), strict=True)))
    some = torch.linspace(0, rows[0].shape[0] - 1, min(POINTS, rows[0].shape[0]), dtype=torch.float64).long()
    return tuple(t[some] for t in rows)


def error_of(results: Sequence[Result]) -> str:
    return next((r.error for r in results if r.error), "")

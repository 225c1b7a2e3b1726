"""A check that makes calls of its own and judges what they return together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from exporter.archive.cases import EXTREMES, Case
from exporter.archive.contract import Contract
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
    """Rows of the ordinary stored cases as one batch; whole inputs of one case where there is no batch.

    Of an implicit model they are rows that converge, from those that take the fewest iterations to those that take the
    most: elastic and plastic ones.
    """
    ordinary = [c for c in cases if c.method == method and not c.name.startswith(EXTREMES)]
    if not ordinary:
        return ()
    if contract.batch.ndim == 0:
        return ordinary[0].inputs
    solved = {c.name: c.outputs for c in cases if c.method == "newton_info"}
    if contract.solvers:
        ordinary = [c for c in ordinary if c.name in solved]
    rows = tuple(map(torch.cat, zip(*(c.inputs for c in ordinary), strict=True)))
    if contract.solvers:
        iterations, _, status = (torch.cat(of) for of in zip(*(solved[c.name] for c in ordinary), strict=True))
        converged = (status.reshape(status.shape[0], -1) == 0).all(1)
        order = iterations.reshape(iterations.shape[0], -1).sum(1)[converged].argsort(stable=True)
        rows = tuple(t[converged][order] for t in rows)
    some = torch.linspace(0, rows[0].shape[0] - 1, min(POINTS, rows[0].shape[0]), dtype=torch.float64).long()
    return tuple(t[some] for t in rows)


def error_of(results: Sequence[Result]) -> str:
    return next((r.error for r in results if r.error), "")

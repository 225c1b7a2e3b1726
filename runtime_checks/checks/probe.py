"""Probes: checks that make calls of their own and judge the results together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from exporter.archive.cases import Cases
from exporter.archive.contract import Contract
from runtime_checks.report import CheckResult
from runtime_checks.runners.base import Call, CallResult, Tensors

# Points at which derivatives are checked.
POINTS = 4


@dataclass(frozen=True)
class Probe:
    """A check that judges the results of ``calls`` in their order; ``further`` may return another probe for them."""

    calls: tuple[Call, ...]
    judge: Callable[[Sequence[CallResult]], CheckResult]
    further: Callable[[Sequence[CallResult]], Probe | None] = lambda _: None


def select_points(contract: Contract, cases: Cases, method: str = "forward") -> Tensors:
    """Select rows of the ordinary stored cases as one batch; the inputs of one case if there is no batch.

    For an implicit model they are rows that converge, from those that take the fewest iterations to those that take the
    most: elastic and plastic ones."""
    ordinary = [c for c in cases if c.method == method and not c.is_extreme]
    if not ordinary:
        return ()
    if contract.batch.ndim == 0:
        return ordinary[0].inputs
    solved = {c.name: c.outputs for c in cases if c.method == "newton_info"}
    if contract.solvers:
        ordinary = [c for c in ordinary if c.name in solved]
    rows = tuple(map(torch.cat, zip(*(c.inputs for c in ordinary), strict=True)))
    if contract.solvers:
        iterations, _, status = (torch.cat(parts) for parts in zip(*(solved[c.name] for c in ordinary), strict=True))
        converged = (status.reshape(status.shape[0], -1) == 0).all(1)
        order = iterations.reshape(iterations.shape[0], -1).sum(1)[converged].argsort(stable=True)
        rows = tuple(t[converged][order] for t in rows)
    spread = torch.linspace(0, rows[0].shape[0] - 1, min(POINTS, rows[0].shape[0]), dtype=torch.float64).long()
    return tuple(t[spread] for t in rows)


def find_error(results: Sequence[CallResult]) -> str:
    """Return the first error of the results, or an empty text."""
    return next((r.error for r in results if r.error), "")

"""Checks of Newton loops that are stopped early: elements that have not converged report it in status and outputs."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from exporter.archive.cases import Cases
from exporter.archive.contract import Contract
from exporter.archive.tensor_spec import name_dtype
from runtime_checks.checks.probe import Probe, find_error, select_points
from runtime_checks.comparison import compare_tensors
from runtime_checks.report import FAILED, NOT_RUN, PASSED, CheckResult
from runtime_checks.runners.base import Call, CallResult

CHECK = "stopped early"
# The status values of ``exporter.model.implicit.newton_solver``.
CONVERGED, NOT_CONVERGED = 0, 1


def solver_status_checks(contract: Contract, cases: Cases) -> list[Probe]:
    """Plan a probe with one iteration allowed: elements that take more have the status 1, and NaN or their last iterate
    as the contract says; the others are as before. Where iterations are the container's own, other steps may solve one
    that takes more."""
    point = select_points(contract, cases)
    if len(contract.solvers) != 1 or "newton_info" not in contract.methods or not point:
        return []
    (solver,) = contract.solvers
    name = f"{solver.path}.max_its"
    if name not in {p.name for p in contract.parameters} or not contract.batch.ndim or solver.on_failure == "raise":
        return []
    is_own_count = contract.tolerance.bounds("iterations", "int64").floor > 1
    once = {name: torch.tensor(1)}
    calls = tuple(Call(method, point, parameters=once) for method in ("newton_info", "forward"))
    calls = (Call("newton_info", point), *calls, *([Call("forward", point)] if is_own_count else []))

    def judge(results: Sequence[CallResult]) -> CheckResult:
        if find_error(results):
            return CheckResult(CHECK, FAILED, len(calls), find_error(results))
        (iterations, _, before), (_, _, after), outputs, *plain = (r.outputs for r in results)
        rows = iterations.shape[0]
        several = (iterations.reshape(rows, -1) > 1).all(1)
        if not bool(several.any()):
            return CheckResult(CHECK, NOT_RUN, detail="no stored case takes more than one iteration")
        wrong = []
        status, once_status = before.reshape(rows, -1), after.reshape(rows, -1)
        if is_own_count and bool((once_status[several] == NOT_CONVERGED).any()):
            early = several & (once_status == CONVERGED).all(1)
            several &= ~early
            if not _agree(contract, early, outputs, plain[0]):
                wrong.append("elements that say they have converged give other numbers than without the limit")
        if not bool((once_status[several] == NOT_CONVERGED).all()):
            wrong.append(f"status {sorted(set(once_status[several].flatten().tolist()))} instead of {NOT_CONVERGED}")
        if not torch.equal(once_status[~several], status[~several]):
            wrong.append("the status of elements that one iteration solves has changed")
        real = [o.reshape(rows, -1) for o in outputs if o.is_floating_point()]
        empty = torch.cat([o.isnan() for o in real], 1).any(1) if real else several
        if not torch.equal(empty, several if solver.on_failure == "nan" else torch.zeros_like(several)):
            wrong.append(f"NaN in {int(empty.sum())} elements, where {int(several.sum())} have not converged")
        message = f"{int(several.sum())} of {rows} elements have not converged, and report it"
        return CheckResult(CHECK, FAILED if wrong else PASSED, len(calls), "; ".join(wrong) or message)

    return [Probe(calls, judge)]


def _agree(
    contract: Contract, rows: torch.Tensor, results: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]
) -> bool:
    """Return whether outputs agree in these rows, beside the size of what is in all of them."""
    for name, result, right in zip(contract.methods["forward"].outputs, results, expected, strict=True):
        mixed = right.clone()
        mixed[rows] = result[rows]
        if not compare_tensors(mixed, right, contract.tolerance.bounds(name, name_dtype(right))).passed:
            return False
    return True

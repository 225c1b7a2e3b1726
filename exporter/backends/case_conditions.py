"""Cases of extreme magnitude that say nothing of code that rounds in another order than the archive.

Where inputs that differ in the last digit give other outputs, beyond the tolerances of the contract, those are rounding
errors: Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 1.6."""

from __future__ import annotations

import dataclasses

import torch

from exporter.archive.cases import Cases, ReferenceCase
from exporter.archive.contract import Contract, Finding
from exporter.archive.tensor_spec import name_dtype
from exporter.common.errors import RunError
from exporter.common.forking import DEFAULT_SECONDS, ForkFailedError, run_in_fork
from exporter.graph.loading import LoadedModule
from exporter.model.implicit.newton_solver import NOT_CONVERGED, SINGULAR

# Draws of inputs that differ by rounding.
DRAWS = 5


def leave_out_vague_cases(
    module: LoadedModule, contract: Contract, cases: Cases, where: str, *, tight: float = 0.0
) -> tuple[Contract, Cases, list[str]]:
    """Return a contract that names the vague cases, which are of extreme magnitude, the other cases, and those names.

    ``tight`` is a factor of the solvers' tolerances for code that does not stop where they would. Raises ``RunError``
    if the file does not run."""
    extreme = [case for case in cases if case.is_extreme]
    vague = find_vague_cases(module, contract, extreme, where, tight=tight)
    if not vague:
        return contract, cases, []
    names = list(dict.fromkeys(case.name for case in vague))
    what = f"cases left out: {', '.join(names)}"
    reason = "one ULP of their inputs, or smaller tolerances of the solver, change the outputs"
    finding = Finding("container", what, reason=reason)
    contract = dataclasses.replace(contract, findings=(*contract.findings, finding))
    return contract, [case for case in cases if case not in vague], names


def has_unsolved(contract: Contract, case: ReferenceCase) -> bool:
    """Return whether a case says of an element that its Newton method has not found a solution."""
    if case.method != "newton_info":
        return False
    status = case.outputs[contract.methods[case.method].outputs.index("status")]
    return bool(((status == NOT_CONVERGED) | (status == SINGULAR)).any())


def find_vague_cases(
    module: LoadedModule, contract: Contract, cases: Cases, where: str, *, tight: float = 0.0
) -> Cases:
    """Return the cases that are not well conditioned, or, if ``tight`` is a factor, whose numbers change where the
    file's solvers have their tolerances times it. The file runs in a forked process: what ends that ends none here.

    Raises ``RunError`` if the process does not finish."""

    def find() -> list[int]:
        relative, absolute = ({f"{s.path}.{n}" for s in contract.solvers if tight} for n in ("rel_tol", "abs_tol"))
        with torch.no_grad():
            for name, value in (*module.named_parameters.items(), *module.named_buffers.items()):
                if name in relative:
                    value.clamp_(max=tight)
                if name in absolute:
                    value.mul_(tight)
        unsolved = {case.name for case in cases if tight and has_unsolved(contract, case)}
        return [
            i
            for i, case in enumerate(cases)
            if case.name in unsolved or not is_well_conditioned(module, contract, case)
        ]

    try:
        return [cases[i] for i in run_in_fork(find)] if cases else []
    except ForkFailedError as error:
        what, expected = "the file's own cases do not run", f"an end within {DEFAULT_SECONDS:g} s"
        raise RunError(what, where=where, got=str(error), expected=expected) from None


def is_well_conditioned(module: LoadedModule, contract: Contract, case: ReferenceCase) -> bool:
    """Return whether the archive itself reproduces a case, within the contract's tolerances, where its inputs change by
    rounding: otherwise the case says nothing of code that rounds in another order."""
    if not case.inputs:
        return True
    generator = torch.Generator().manual_seed(0)

    def perturb(x: torch.Tensor) -> torch.Tensor:
        if not x.is_floating_point():
            return x
        return x * (1 + torch.randint(-1, 2, x.shape, generator=generator).to(x.dtype) * torch.finfo(x.dtype).eps)

    draws = [[perturb(x) for x in case.inputs] for _ in range(DRAWS)]
    # Elements are independent: one call for all draws, where there is a batch.
    calls = [[torch.cat(column) for column in zip(*draws, strict=True)]] if contract.batch.ndim else draws
    for inputs in calls:
        with torch.no_grad():
            outputs = module.run(case.method, inputs)
        for name, value_got, stored in zip(contract.methods[case.method].outputs, outputs, case.outputs, strict=True):
            if not stored.is_floating_point():
                continue
            expected = torch.cat([stored] * DRAWS) if contract.batch.ndim else stored
            bounds = contract.tolerance.bounds(name, name_dtype(expected))
            finite = expected[expected.isfinite()]
            largest = float(finite.abs().max()) if finite.numel() else 0.0
            allowed = bounds.atol * largest + bounds.floor
            if not torch.allclose(value_got, expected, rtol=bounds.rtol, atol=allowed, equal_nan=True):
                return False
    return True

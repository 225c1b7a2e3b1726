"""The programs of an archive's methods, and the contract that holds for containers made from them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from types import MappingProxyType

import torch

from exporter.archive.cases import Cases, supports_case
from exporter.archive.contract import Contract, Finding, Solver
from exporter.archive.pt_archive import Archive
from exporter.backends.case_conditions import leave_out_vague_cases
from exporter.backends.torch_export.program import Overrides, Program, export_program
from exporter.graph.loading import open_module


@dataclass(frozen=True)
class ArchivePrograms:
    """The programs of an archive by method, the tensors settable in any of them, the contract that holds for them, and
    the archive's cases that say something of them."""

    programs: dict[str, Program]
    parameters: dict[str, torch.Tensor]
    contract: Contract
    cases: Cases

    def select_cases(self, contract: Contract) -> Cases:
        """Return the cases that a container with this contract can run."""
        return [case for case in self.cases if supports_case(contract, case)]


def export_programs(opened: Archive, overrides: Overrides = MappingProxyType({})) -> ArchivePrograms:
    """Export the methods of an archive as programs."""
    module = open_module(opened)
    programs = {name: export_program(module, opened.contract, name, overrides) for name in opened.contract.methods}
    parameters = {n: t for method_program in programs.values() for n, t in method_program.parameters.items()}
    contract = _adapt_contract(opened.contract, programs, parameters)
    cases = [case for case in opened.cases() if supports_case(contract, case)]
    contract, cases, _ = leave_out_vague_cases(module, contract, cases, str(opened.path))
    return ArchivePrograms(programs, parameters, contract, cases)


def _adapt_contract(contract: Contract, programs: dict[str, Program], parameters: dict[str, torch.Tensor]) -> Contract:
    notes = dict.fromkeys(note for method_program in programs.values() for note in method_program.notes)
    unsettable = [p.name for p in contract.parameters if p.name not in parameters]
    findings = [Finding("container", note, reason="the container raises no errors") for note in notes]
    if unsettable:
        what = f"not settable here: {', '.join(unsettable)}"
        findings.append(Finding("container", what, reason="no method reads it, or the solver does without it"))

    def keep_settable(solver: Solver) -> Solver:
        settings = {n: v for n, v in solver.settings.items() if f"{solver.path}.{n}" in parameters}
        return dataclasses.replace(solver.without_errors(), settings=settings)

    return dataclasses.replace(
        contract,
        batch=contract.batch.with_one_dimension(),
        parameters=tuple(p for p in contract.parameters if p.name in parameters),
        findings=(*contract.findings, *findings),
        devices=("cpu",),
        differentiable=False,
        solvers=tuple(map(keep_settable, contract.solvers)),
    )

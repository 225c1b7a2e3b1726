"""Runs compiled code (``.pt2``) in a fresh Python process that has torch, and neither the source library nor ours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from exporter.archive import pt_archive
from exporter.archive.contract import Contract
from exporter.common.errors import RunError
from runtime_checks.engines.engines import hold_machine
from runtime_checks.runners.base import Call, Run, Verdict
from runtime_checks.runners.python_runner import CODE, IsolatedPython

MACHINE = "machine"


@dataclass(frozen=True)
class Aoti:
    """As ``IsolatedPython``, once the file is known to be for this machine."""

    inner: IsolatedPython
    name: str = "aoti"

    @property
    def device(self) -> str:
        return self.inner.device

    def run(self, path: Path, contract: Contract, calls: Sequence[Call]) -> Run:
        said = hold_machine(pt_archive.read(path), self.device)
        inner = replace(self.inner, holds=CODE)
        try:
            run = inner.run(path, contract, calls)
        except RunError:
            # Code that was compiled for one size reads beyond another, and its process may end. With torch's own checks
            # of shapes it says so, call by call; they are not always on, as torch believes that no batch is below 2.
            run = replace(inner, guarded=True).run(path, contract, calls)
        return replace(run, verdicts=(Verdict(MACHINE, True, said),))

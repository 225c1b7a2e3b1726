"""Runner of compiled code (``.pt2``) in a fresh Python process that has torch, but not the source library or ours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from exporter.archive import pt_archive
from exporter.archive.contract import Contract
from exporter.common.errors import RunError
from runtime_checks.engines.engines import check_machine
from runtime_checks.runners.base import Call, Run, RunnerVerdict
from runtime_checks.runners.python_runner import CODE, PythonRunner

MACHINE = "machine"


@dataclass(frozen=True)
class PackageRunner:
    """A ``PythonRunner`` that first checks that the file is for this machine."""

    inner: PythonRunner
    name: str = "aoti"

    @property
    def device(self) -> str:
        """Return the device of the inner runner."""
        return self.inner.device

    def run(self, path: Path, contract: Contract, calls: Sequence[Call]) -> Run:
        description = check_machine(pt_archive.read(path), self.device)
        inner = replace(self.inner, holds=CODE)
        try:
            run = inner.run(path, contract, calls)
        except RunError:
            # Code compiled for one size may read past the end of another and kill its process. With torch's own checks
            # of shapes it reports that call by call; they are not always on, as torch assumes that no batch is below 2.
            run = replace(inner, guarded=True).run(path, contract, calls)
        return replace(run, verdicts=(RunnerVerdict(MACHINE, True, description),))

"""Runs compiled code (``.pt2``) in a fresh Python process that has torch, and neither the source library nor ours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from exporter import archive, machine
from exporter.contract import Contract
from exporter.errors import ArchiveError
from runtime_checks.runners.base import Call, Run, Verdict
from runtime_checks.runners.isolated_python import IsolatedPython

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
        said = hold_machine(path, self.device)
        run = replace(self.inner, compiled=True).run(path, contract, calls)
        return replace(run, verdicts=(Verdict(MACHINE, True, said),))


def hold_machine(path: Path, device: str) -> str:
    """What the compiled code is for. Raises ``RunError`` where that is another machine."""
    made = archive.read(path).machine()
    if made is None:
        raise ArchiveError("this file holds no compiled code", where=str(path), mend="load it as .pt")
    machine.hold(made, machine.here(torch.__version__, device), str(path))
    return f"{made.processor} with {len(made.instructions)} instruction sets, torch {made.torch}, {made.device}"

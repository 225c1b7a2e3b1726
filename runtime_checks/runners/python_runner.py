"""Runs an archive in a fresh Python process that can import the standard library and torch, and nothing else."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from exporter.archive.contract import Contract
from exporter.archive.pt_archive import LARGEST_OPTIMISED
from exporter.common.errors import RunError
from runtime_checks.runners import fork_server
from runtime_checks.runners.base import Call, Result, Run
from runtime_checks.runners.fork_server import TORCH_AND_ITS_OWN
from runtime_checks.runners.subprocesses import check_limits, ended_early, write_calls

GRAPHS, CODE, PROGRAMS = "graphs", "code", "programs"


@dataclass(frozen=True)
class IsolatedPython:
    """A fresh process for each run, with limits on wall time and on memory (of the address space)."""

    seconds: float = 600.0
    memory: float = 16 * 2**30
    device: str = "cpu"
    name: str = "python"
    # What the file holds in the place of graphs.
    holds: str = GRAPHS
    # Whether that checks the shapes that it is given.
    guarded: bool = False
    # Whether torch's optimiser is given graphs that are not too large for it.
    optimised: bool = True

    def __post_init__(self) -> None:
        check_limits(self.seconds, self.memory)

    def run(self, path: Path, contract: Contract | None, calls: Sequence[Call]) -> Run:
        """Without a contract it is a file of somebody else's, whose methods may return other than tuples of tensors."""
        with tempfile.TemporaryDirectory(prefix="torchferry-") as folder:
            calls_file, results_file, evidence_file, said = (
                Path(folder, name) for name in ("calls.pt", "results.pt", "evidence.json", "said.txt")
            )
            write_calls(calls, calls_file)
            source = {contract.source.library, *contract.source.refused_imports} if contract else set()
            job: dict[str, object] = {
                "archive": str(path.resolve()),
                "device": self.device,
                "calls": str(calls_file),
                "results": str(results_file),
                "evidence": str(evidence_file),
                "said": str(said),
                # torch is among the packages that the process may import, so it cannot be refused
                "refused": sorted(source - {*TORCH_AND_ITS_OWN}),
                "memory": int(self.memory),
                "seconds": self.seconds,
                "largest_optimised": LARGEST_OPTIMISED if self.optimised else 0,
                "any_outputs": contract is None,
                "holds": self.holds,
                "guarded": self.guarded,
            }
            with fork_server.shared() as server:
                code, text = server.run(job, self.seconds)
            if code != 0 or not evidence_file.exists():
                raise ended_early(path, code, text, self.seconds, self.memory)
            evidence = json.loads(evidence_file.read_text())
            if evidence.get("load_error"):
                raise RunError(
                    "the archive does not load where its source library is absent",
                    where=str(path),
                    got=str(evidence["load_error"]).strip().splitlines()[0],
                    expected="a file that torch alone loads",
                    mend="export it again; if it was written elsewhere, compare the torch versions",
                )
            loaded = torch.load(results_file, weights_only=True)
        results = tuple(_result(contract, call, r) for call, r in zip(calls, loaded, strict=True))
        return Run(results, evidence)


def _result(contract: Contract | None, call: Call, found: dict) -> Result:
    outputs = tuple(found["outputs"])
    if contract is None or found["error"] or call.seeds:
        return Result(outputs, found["error"])
    wanted = len(contract.methods[call.method].outputs)
    return Result(outputs) if len(outputs) == wanted else Result((), f"{len(outputs)} outputs instead of {wanted}")

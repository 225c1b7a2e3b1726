"""Runs an archive in a fresh Python process that can import the standard library and torch, and nothing else."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from exporter.contract import Contract
from exporter.errors import RunError
from runtime_checks.runners.base import Call, Result, Run
from runtime_checks.runners.process import check_limits, ended_early, start, write_calls

CHILD = Path(__file__).with_name("isolated_child.py")
# torch's optimising executor takes time with the square of a graph's size: minutes for an unrolled iteration of
# 125,000 nodes. Larger graphs than this run as they are, and the report says so.
LARGEST_OPTIMISED = 20_000
# torch and what it imports for itself; numpy is left out, which torch does not need.
TORCH_AND_ITS_OWN = (
    "torch",
    "torchgen",
    "functorch",
    "typing_extensions",
    "sympy",
    "mpmath",
    "networkx",
    "jinja2",
    "markupsafe",
    "filelock",
    "fsspec",
    "nvidia",
    "triton",
    "cuda",
)


@dataclass(frozen=True)
class IsolatedPython:
    """A fresh process for each run, with limits on wall time and on memory (of the address space)."""

    seconds: float = 600.0
    memory: float = 16 * 2**30
    device: str = "cpu"
    name: str = "python"

    def __post_init__(self) -> None:
        check_limits(self.seconds, self.memory)

    def run(self, path: Path, contract: Contract, calls: Sequence[Call]) -> Run:
        with tempfile.TemporaryDirectory(prefix="torchferry-") as folder:
            calls_file, results_file = Path(folder, "calls.pt"), Path(folder, "results.pt")
            write_calls(calls, calls_file)
            source = {contract.source.library, *contract.source.refused_imports}
            job: dict[str, object] = {
                "archive": str(path.resolve()),
                "device": self.device,
                "calls": str(calls_file),
                "results": str(results_file),
                "packages": _packages(),
                # torch is among the packages that the process may import, so it cannot be refused
                "refused": sorted(source - {*TORCH_AND_ITS_OWN}),
                "memory": int(self.memory),
                "seconds": self.seconds,
                "largest_optimised": LARGEST_OPTIMISED,
            }
            done = self._start(job)
            if done.returncode != 0 or not results_file.exists():
                raise ended_early(path, done, self.seconds, self.memory)
            evidence = json.loads(done.stdout.splitlines()[-1])
            if evidence.get("load_error"):
                raise RunError(
                    "the archive does not load where its source library is absent",
                    where=str(path),
                    got=str(evidence["load_error"]).strip().splitlines()[0],
                    expected="a file that plain torch.jit.load takes",
                    mend="export it again; if it was written elsewhere, compare the torch versions",
                )
            loaded = torch.load(results_file, weights_only=True)
        results = tuple(Result(tuple(r["outputs"]), r["error"]) for r in loaded)
        return Run(results, evidence)

    def _start(self, job: dict[str, object]) -> subprocess.CompletedProcess[str]:
        # Isolated mode: no PYTHON* variables, no user site; -S: no site-packages either.
        command = [sys.executable, "-I", "-S", str(CHILD)]
        return start(command, str(job["archive"]), self.seconds, text=json.dumps(job))


def _packages() -> dict[str, str]:
    """The folder of each package that the child may import, as this process finds it."""
    found = {}
    for name in TORCH_AND_ITS_OWN:
        spec = importlib.util.find_spec(name)
        if spec is None:
            continue
        places = list(spec.submodule_search_locations or [])
        place = Path(places[0]) if places else Path(spec.origin or "")
        found[name] = str(place.parent)
    return found

"""Runs an archive in a fresh Python process that can import the standard library and torch, and nothing else."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from exporter.contract import Contract
from exporter.errors import MissingRuntimeError, OutputError, RunError, UsageError
from runtime_checks.runners.base import Call, Result, Run

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
    name: str = "python"

    def __post_init__(self) -> None:
        if not (0 < self.seconds < float("inf") and 0 < self.memory < float("inf")):
            raise UsageError(
                "a limit is not a positive number",
                got=f"{self.seconds} s, {self.memory} bytes",
                expected="--time-limit in seconds and --memory-limit in GiB, both above 0",
            )

    def run(self, path: Path, contract: Contract, calls: Sequence[Call]) -> Run:
        with tempfile.TemporaryDirectory(prefix="torchferry-") as folder:
            calls_file, results_file = Path(folder, "calls.pt"), Path(folder, "results.pt")
            try:
                torch.save([(c.method, list(c.inputs), c.default_dtype) for c in calls], calls_file)
            except (OSError, RuntimeError) as error:
                raise OutputError(
                    "the calls for a fresh process cannot be written",
                    where=folder,
                    got=str(error).splitlines()[0],
                    mend="free the disk, or set TMPDIR to another one",
                ) from None
            source = {contract.source.library, *contract.source.refused_imports}
            job: dict[str, object] = {
                "archive": str(path.resolve()),
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
                raise self._ended(path, done)
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
        keep = {k: v for k, v in os.environ.items() if k in ("PATH", "HOME", "LD_LIBRARY_PATH", "TMPDIR")}
        try:
            return subprocess.run(
                command,
                input=json.dumps(job),
                capture_output=True,
                text=True,
                timeout=self.seconds,
                env=keep,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise RunError(
                "the archive did not finish in a fresh process",
                where=str(job["archive"]),
                got=f"more than {self.seconds:g} s",
                mend="raise the limit with --time-limit",
            ) from None
        except OSError as error:
            raise MissingRuntimeError("a fresh Python process cannot be started", got=str(error)) from None

    def _ended(self, path: Path, done: subprocess.CompletedProcess[str]) -> RunError:
        last = (done.stderr.strip().splitlines() or [""])[-1]
        how = f"signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
        return RunError(
            "the process that ran the archive ended early",
            where=str(path),
            got=f"{how}{': ' + last if last else ''}",
            expected=f"a run within {self.seconds:g} s and {self.memory / 2**30:.1f} GiB",
            mend="raise --time-limit or --memory-limit if the limits are the reason",
        )


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

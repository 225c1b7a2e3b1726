"""Runner of an archive in a fresh Python process that can import the standard library and torch, and nothing else but,
without TorchScript, what of torchferry reads and evaluates an archive."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from exporter.archive.contract import Contract
from exporter.archive.pt_archive import MAX_OPTIMISED_NODES
from exporter.common import script_loading
from exporter.common.errors import RunError
from exporter.common.temporary_folders import temporary_folder
from runtime_checks.runners import fork_server
from runtime_checks.runners.base import Call, CallResult, Run
from runtime_checks.runners.call_files import write_calls
from runtime_checks.runners.fork_server import TORCH_AND_ITS_OWN
from runtime_checks.runners.subprocesses import MEMORY, check_limits, find_package_folders, make_early_end_error

# Methods of a graph of at least so many nodes run side by side: torch's optimiser takes tenths of a second for each.
LEAST_SHARED_NODES = 500
# Calls of one method run side by side if they take longer than this: a process costs some hundredths of a second.
LEAST_SHARED_SECONDS = 0.3
GRAPHS, CODE, PROGRAMS, RECORDS = "graphs", "code", "programs", "records"
# What reads an archive and evaluates its records: the exporter's lower floors, and the packages that these import.
_READER = ("exporter", "pydantic", "pydantic_core", "annotated_types", "typing_inspection", "typing_extensions")
_FLOORS, _FLOOR_OF_MODELS = {"exporter": ("common", "archive", "saved_code")}, "exporter.model"


@dataclass(frozen=True)
class PythonRunner:
    """A runner with a fresh process for each run, with limits on wall time and on memory (of the address space)."""

    seconds: float = 600.0
    memory: float = MEMORY
    device: str = "cpu"
    name: str = "python"
    # What runs of the file: graphs by TorchScript, compiled code, programs, or its records by the interpreter.
    holds: str = GRAPHS
    # Whether compiled code checks the shapes of its inputs.
    guarded: bool = False
    # Whether torch's optimiser runs graphs that are not too large for it.
    optimised: bool = True
    # How many processes may share the methods of a large file, or the calls of a slow one.
    jobs: int = 1

    def __post_init__(self) -> None:
        check_limits(self.seconds, self.memory)

    def run(self, path: Path, contract: Contract | None, calls: Sequence[Call]) -> Run:
        """Run the calls. Without a contract the file is foreign, and may return other values than tuples of tensors."""
        with temporary_folder() as folder:
            names = ("calls.pt", "results.pt", "evidence.json", "said.txt")
            calls_file, results_file, evidence_file, log_file = (folder / name for name in names)
            write_calls(calls, calls_file)
            source = {contract.source.library, *contract.source.refused_imports} - {""} if contract else set[str]()
            further, parts = dict[str, str](), dict[str, tuple[str, ...]]()
            if self.holds == RECORDS:
                further, parts = find_package_folders(_READER), _FLOORS
                source = source - {*_READER} | {_FLOOR_OF_MODELS}
            job: dict[str, object] = {
                "archive": str(path.resolve()),
                "folder": str(folder),
                "device": self.device,
                "calls": str(calls_file),
                "results": str(results_file),
                "evidence": str(evidence_file),
                "said": str(log_file),
                # torch is among the packages that the process may import, so it cannot be refused
                "refused": sorted(source - {*TORCH_AND_ITS_OWN}),
                "memory": int(self.memory),
                "seconds": self.seconds,
                "largest_optimised": MAX_OPTIMISED_NODES if self.optimised else 0,
                "least_shared": LEAST_SHARED_NODES,
                "least_seconds": LEAST_SHARED_SECONDS,
                "any_outputs": contract is None,
                "holds": self.holds,
                "script_loading": script_loading.__file__,
                "guarded": self.guarded,
                "further_packages": further,
                "parts": parts,
                "jobs": self.jobs if self.device == "cpu" and self.holds == GRAPHS else 1,
            }
            with fork_server.shared_fork_server() as server:
                code, text = server.run(job, self.seconds)
            if code != 0 or not evidence_file.exists():
                raise make_early_end_error(path, code, text, self.seconds, self.memory)
            evidence = json.loads(evidence_file.read_text())
            if evidence.get("load_error"):
                raise self._make_load_error(path, str(evidence["load_error"]).strip())
            loaded = torch.load(results_file, weights_only=True)
        results = tuple(_make_result(contract, call, r) for call, r in zip(calls, loaded, strict=True))
        return Run(results, evidence)

    def _make_load_error(self, path: Path, text: str) -> RunError:
        """Make the error of a file that does not load in its process."""
        if self.holds == RECORDS:
            what, expected = "the archive does not load without TorchScript", "code that the interpreter reads"
            lines = [line.strip() for line in text.splitlines()]
            got = "; ".join(line for line in lines if not line.startswith("mend: "))
            mend = "verify it with a torch that has torch.jit"
        else:
            what, expected = "the archive does not load without its source library", "a file that torch alone loads"
            got, mend = text.splitlines()[0], "export it again; if it was written elsewhere, compare the torch versions"
        return RunError(what, where=str(path), got=got, expected=expected, mend=mend)


def _make_result(contract: Contract | None, call: Call, record: dict) -> CallResult:
    outputs = tuple(record["outputs"])
    if contract is None or record["error"] or call.seeds:
        return CallResult(outputs, record["error"])
    count = len(contract.methods[call.method].outputs)
    reason = f"{len(outputs)} outputs instead of {count}"
    return CallResult(outputs) if len(outputs) == count else CallResult((), reason)

"""Runner of an archive in a C++ process that has libtorch and no Python: the harness ``torchferry_verify``."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from exporter.archive.contract import Contract
from exporter.common.errors import ArchiveError, MissingRuntimeError, RunError
from exporter.common.temporary_folders import temporary_folder
from runtime_checks import native_build
from runtime_checks.runners.base import Call, CallResult, Run
from runtime_checks.runners.call_files import write_calls
from runtime_checks.runners.subprocesses import (
    CONFINEMENT_PACKAGE,
    MEMORY,
    check_limits,
    find_package_folder,
    make_early_end_error,
    run_process,
)

LAUNCHER = Path(__file__).with_name("children") / "confined_program.py"
_REPORTED = (0, 5)


@dataclass(frozen=True)
class LibtorchRunner:
    """A runner with a fresh process of the harness for each run, within limits on wall time and address space."""

    seconds: float = 600.0
    device: str = "cpu"
    name: str = "libtorch"
    memory: float = MEMORY

    def __post_init__(self) -> None:
        check_limits(self.seconds, self.memory)

    def run(self, path: Path, contract: Contract, calls: Sequence[Call]) -> Run:
        harness = native_build.build() / "bin" / "torchferry_verify"
        source = {contract.source.library, *contract.source.refused_imports} - {"", "torch"}
        with temporary_folder() as folder:
            calls_file, results_file = folder / "calls.pt", folder / "results.pt"
            confinement_file = folder / "confinement.json"
            write_calls(calls, calls_file)
            job = {
                "folder": str(folder),
                "package": find_package_folder(CONFINEMENT_PACKAGE),
                "devices": self.device != "cpu",
                "memory": self.memory,
                "seconds": self.seconds,
                "evidence": str(confinement_file),
            }
            command = [sys.executable, "-I", "-S", str(LAUNCHER), json.dumps(job)]
            command += [str(harness), str(path.resolve()), "--json", "--device", self.device]
            command += ["--replay", str(calls_file), "--results", str(results_file)]
            # Whether native code may run was decided before, from the record that this process has of its own.
            command.append("--allow-native")
            # Not our own name: the library under test would count as foreign.
            command += [f"--absent={name}" for name in sorted(source - {"torchferry"})]
            done = run_process(command, str(path), self.seconds)
            report = _parse_report(done.stdout)
            if done.returncode not in _REPORTED or report is None:
                if report:
                    raise _make_error(path, report)
                raise make_early_end_error(path, done.returncode, done.stderr, self.seconds, self.memory)
            # Outputs of all calls that did not fail, one after the other.
            outputs = iter(torch.load(results_file, weights_only=True))
            in_force = json.loads(confinement_file.read_text())
        results = []
        for i, call in enumerate(calls):
            error = report["replay"]["errors"].get(str(i), "")
            gradients = sum(t.is_floating_point() for t in call.inputs) + len(call.wrt) if call.seeds else 0
            count = 0 if error else len(contract.methods[call.method].outputs) + gradients
            results.append(CallResult(tuple(itertools.islice(outputs, count)), error))
        evidence = {k: report[k] for k in ("torch", "nodes", "foreign_objects", "cases", "threads")}
        return Run(tuple(results), {**evidence, "optimised": report["optimized"], "confinement": in_force})


def _parse_report(text: str) -> dict | None:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _make_error(path: Path, report: dict) -> Exception:
    """Convert the harness's error into the same error class here."""
    what, *details = str(report["error"]).splitlines()
    got = "; ".join(line.strip() for line in details)
    error_classes = {"TF_ERROR_UNAVAILABLE": MissingRuntimeError, "TF_ERROR_ARCHIVE": ArchiveError}
    error_class = error_classes.get(report["status"], RunError)
    return error_class(f"libtorch: {what}", where=str(path), got=got)

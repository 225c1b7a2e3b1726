"""Comparison of the outputs of two files on the same inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from exporter.archive.cases import Cases, ReferenceCase
from exporter.archive.contract import DEFAULT_TOLERANCE, Contract, name_output
from exporter.archive.tensor_spec import name_dtype
from runtime_checks.comparison import Comparison, compare_tensors
from runtime_checks.runners import fork_server
from runtime_checks.runners.base import Call, CallResult
from runtime_checks.runners.python_runner import PythonRunner


@dataclass(frozen=True)
class OutputComparison:
    """The comparison of one output of a case in both files; ``output`` is empty if the whole call differs."""

    case: str
    method: str
    output: str
    comparison: Comparison


# A file, and its contract if it has one.
Side = tuple[Path, Contract | None]


def compare_outputs(first: Side, second: Side, cases: Mapping[str, Cases]) -> tuple[OutputComparison, ...]:
    """Run the union of the ``cases`` (by owner) in both files, each in a fresh process, and compare the outputs.

    The outputs of the ``first`` file are expected, to its tolerance, or to torchferry's own if it has no contract. An
    error in both agrees. Raise ``RunError`` if a file does not load or its process ends."""
    unique_cases = merge_cases(cases)
    calls = [Call(case.method, case.inputs) for case in unique_cases]
    # The graphs are run as stored: torch's optimiser is another question, and takes seconds for each.
    runner = PythonRunner(optimised=False)
    with fork_server.shared_fork_server():
        expected, got = (runner.run(path, contract, calls).results for path, contract in (first, second))
    pairs = zip(unique_cases, expected, got, strict=True)
    return tuple(comparison for case, a, b in pairs for comparison in _compare_case(case, a, b, first[1]))


def _compare_case(
    case: ReferenceCase, expected: CallResult, got: CallResult, contract: Contract | None
) -> list[OutputComparison]:
    if expected.error or got.error:
        messages = [(r.error or "it ran").strip().splitlines()[0] for r in (expected, got)]
        passed = bool(expected.error and got.error)
        reason = "" if passed else f"{messages[1]}; the first file: {messages[0]}"
        return [OutputComparison(case.name, case.method, "", Comparison(passed, reason))]
    if len(expected.outputs) != len(got.outputs):
        reason = f"{len(got.outputs)} outputs instead of {len(expected.outputs)}"
        return [OutputComparison(case.name, case.method, "", Comparison(False, reason))]
    spec = contract.methods.get(case.method) if contract else None
    names = spec.outputs if spec else [f"output {i}" for i in range(len(got.outputs))]
    tolerance = contract.tolerance if contract else DEFAULT_TOLERANCE
    comparisons = []
    for name, a, b in zip(names, expected.outputs, got.outputs, strict=True):
        comparison = compare_tensors(b, a, tolerance.bounds(name, name_dtype(a)))
        comparisons.append(OutputComparison(case.name, case.method, name_output(name), comparison))
    return comparisons


def merge_cases(cases: Mapping[str, Cases]) -> list[ReferenceCase]:
    """Return the cases of all owners, each of equal inputs once."""
    merged: list[ReferenceCase] = []
    for owner, owned in cases.items():
        for case in owned:
            if not any(_has_equal_inputs(case, existing) for existing in merged):
                merged.append(ReferenceCase(f"{case.name} ({owner})", case.method, case.inputs, ()))
    return merged


def _has_equal_inputs(left: ReferenceCase, right: ReferenceCase) -> bool:
    if left.method != right.method or len(left.inputs) != len(right.inputs):
        return False
    pairs = list(zip(left.inputs, right.inputs, strict=True))
    alike = all(a.dtype == b.dtype and a.shape == b.shape for a, b in pairs)
    return alike and all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in pairs)

"""Two files on the same inputs: whether their outputs agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from exporter.archive.cases import Case
from exporter.archive.contract import Bounds, Contract, Tolerance, block_name
from runtime_checks.comparison import Comparison, compare
from runtime_checks.runners import fork_server
from runtime_checks.runners.base import Call, Result
from runtime_checks.runners.python_runner import IsolatedPython


@dataclass(frozen=True)
class Answer:
    """One output of a case in both files; ``output`` is empty where the whole call differs."""

    case: str
    method: str
    output: str
    comparison: Comparison


# A file, and its contract where it has one.
Side = tuple[Path, Contract | None]


def numbers(one: Side, other: Side, cases: Mapping[str, Sequence[Case]]) -> tuple[Answer, ...]:
    """The union of the ``cases`` (by whose they are) in both files, each file in a fresh process.

    The first file's outputs are what is expected, to its tolerance, or to torchferry's own where it has no contract. An
    error in both agrees. Raises ``RunError`` where a file does not load or its process ends.
    """
    asked = union(cases)
    calls = [Call(case.method, case.inputs) for case in asked]
    # As the files have it: what torch's optimiser makes of two graphs is another question, and takes seconds of each.
    runner = IsolatedPython(optimised=False)
    with fork_server.shared():
        expected, got = (runner.run(path, contract, calls).results for path, contract in (one, other))
    return tuple(
        answer for case, a, b in zip(asked, expected, got, strict=True) for answer in _compared(case, a, b, one[1])
    )


def _compared(case: Case, expected: Result, got: Result, contract: Contract | None) -> list[Answer]:
    if expected.error or got.error:
        said = [(r.error or "it ran").strip().splitlines()[0] for r in (expected, got)]
        passed = bool(expected.error and got.error)
        reason = "" if passed else f"{said[1]}; the first file: {said[0]}"
        return [Answer(case.name, case.method, "", Comparison(passed, reason))]
    if len(expected.outputs) != len(got.outputs):
        reason = f"{len(got.outputs)} outputs instead of {len(expected.outputs)}"
        return [Answer(case.name, case.method, "", Comparison(False, reason))]
    spec = contract.methods.get(case.method) if contract else None
    names = spec.outputs if spec else [f"output {i}" for i in range(len(got.outputs))]
    return [
        Answer(
            case.name,
            case.method,
            name if isinstance(name, str) else block_name(*name),
            compare(b, a, _bounds(contract, name, a)),
        )
        for name, a, b in zip(names, expected.outputs, got.outputs, strict=True)
    ]


def _bounds(contract: Contract | None, name: str | tuple[str, str], value: torch.Tensor) -> Bounds:
    tolerance = contract.tolerance if contract else Tolerance()
    return tolerance.bounds(name, str(value.dtype).removeprefix("torch."))


def union(cases: Mapping[str, Sequence[Case]]) -> list[Case]:
    """What both have is there once."""
    found: list[Case] = []
    for owner, more in cases.items():
        for case in more:
            if not any(_equal(case, other) for other in found):
                found.append(Case(f"{case.name} ({owner})", case.method, case.inputs, ()))
    return found


def _equal(one: Case, other: Case) -> bool:
    return (
        one.method == other.method
        and len(one.inputs) == len(other.inputs)
        and all(
            a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.nan_to_num(), b.nan_to_num())
            for a, b in zip(one.inputs, other.inputs, strict=True)
        )
    )

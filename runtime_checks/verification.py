"""Verification of an archive: integrity, isolation, every check, one report."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from exporter.archive.cases import Case, admits
from exporter.archive.contract import Contract
from exporter.archive.pt_archive import Archive
from runtime_checks import containers
from runtime_checks.checks import (
    autograd,
    batch_invariance,
    derivative_consistency,
    devices,
    eager_parity,
    finite_differences,
    solver_status,
)
from runtime_checks.checks.expectation import Expectation, NotRun
from runtime_checks.checks.probe import Probe
from runtime_checks.comparison import Comparison, compare
from runtime_checks.containers import Container
from runtime_checks.envelope import ENVELOPE, ERROR, OFF, outside_envelope
from runtime_checks.kernels.embedded import Carried
from runtime_checks.report import FAILED, NOT_RUN, PASSED, CheckResult, Leg, OutputResult, Report
from runtime_checks.runners import fork_server
from runtime_checks.runners.base import Result, Run, Runner
from runtime_checks.runners.python_runner import IsolatedPython

INTEGRITY, ISOLATION, CONTRACT = "integrity", "source library absent", "contract"
HARNESS = "native comparison"


def examine(
    path: Path,
    *,
    fresh: Sequence[Case] | None = None,
    runners: Sequence[Runner] = (),
    shown_as: Path | None = None,
    notes: Sequence[str] = (),
    envelope: str = OFF,
) -> Report:
    """Run every check on the archive at ``path`` and say what was found; a mismatch is in the report, not raised.

    ``fresh`` are cases that an export made for the occasion; ``runners`` are runtimes on devices (a fresh Python on the
    CPU if none is given); ``shown_as`` is the name that the report gives a file that is yet to be renamed. Raises
    ``ArchiveError`` for a damaged file and for one that does not load, ``MissingRuntimeError`` for a runtime that is
    not there.
    """
    runners = runners or (IsolatedPython(),)
    seconds: dict[str, float] = {}
    start = time.perf_counter()
    opened = containers.read(path)
    cases = opened.cases()
    seconds["integrity"] = time.perf_counter() - start
    held = [containers.in_runtime(opened, runner.name) for runner in runners]
    with fork_server.shared():
        legs = [_leg(path, one, fresh, r, seconds) for one, r in zip(held, runners, strict=True)]
    outside = outside_envelope(opened.contract, cases) if envelope != OFF else []
    if envelope == ERROR:
        verdict = CheckResult(ENVELOPE, FAILED if outside else PASSED, len(cases), "; ".join(outside))
        legs = [dataclasses.replace(leg, checks=(*leg.checks, verdict)) for leg in legs]
    elif outside:
        notes = (*notes, *(f"outside the envelope: {text}" for text in outside))
    return Report(
        archive=str(shown_as or path),
        model=opened.contract.name,
        legs=tuple(legs),
        findings=tuple(dataclasses.asdict(f) for f in dict.fromkeys(f for one in held for f in one.contract.findings)),
        seconds=seconds,
        notes=tuple(notes),
    )


def verify(
    path: Path,
    *,
    fresh: Sequence[Case] | None = None,
    runners: Sequence[Runner] = (),
    shown_as: Path | None = None,
    notes: Sequence[str] = (),
    envelope: str = OFF,
) -> Report:
    """``examine``, with a failed check raised as ``MismatchError``."""
    report = examine(path, fresh=fresh, runners=runners, shown_as=shown_as, notes=notes, envelope=envelope)
    report.raise_if_failed()
    return report


def _leg(
    path: Path,
    opened: Container,
    fresh: Sequence[Case] | None,
    runner: Runner,
    seconds: dict[str, float],
) -> Leg:
    """Every check in one runtime on one device; adds its seconds to ``seconds``."""
    cases = opened.cases()
    probes = _probes(opened.contract, cases, containers.parameters(opened))
    if isinstance(opened, Carried) and fresh is not None:
        fresh = [case for case in fresh if admits(opened.contract, case)]
    expectations, skipped = _expectations(opened.contract, cases, fresh, runner)
    begun = start = time.perf_counter()
    asked = [e.call for e in expectations] + [call for probe in probes for call in probe.calls]
    run = runner.run(path, opened.contract, asked)
    spent = time.perf_counter() - start
    answers = iter(run.results)
    judged = [_judge(e, r, opened.contract) for e, r in zip(expectations, answers, strict=False)]
    checks = [_integrity(opened), _isolation(run), *_contract(opened.contract, run), *_harness(run)]
    said = {True: PASSED, False: FAILED, None: NOT_RUN}
    checks += [CheckResult(v.check, said[v.passed], detail=v.detail) for v in run.verdicts]
    for name in dict.fromkeys(e.check for e in expectations):
        checks.append(_check(name, [(e, j) for e, j in zip(expectations, judged, strict=True) if e.check == name]))
    found = [(probe, list(itertools.islice(answers, len(probe.calls)))) for probe in probes]
    checks += [probe.judge(results) for probe, results in found]
    # What the answers raise questions about is asked in another run.
    further = [more for probe, results in found if (more := probe.further(results)) is not None]
    if further:
        start = time.perf_counter()
        answers = iter(runner.run(path, opened.contract, [call for probe in further for call in probe.calls]).results)
        spent += time.perf_counter() - start
        checks += [probe.judge(list(itertools.islice(answers, len(probe.calls)))) for probe in further]
    seconds[f"fresh process, {runner.name}, {runner.device}"] = spent
    if run.evidence.get("optimised") is False:
        reason = f"a graph of {run.evidence['nodes']} nodes was run as it is: torch's optimiser takes minutes on it"
        skipped.append(NotRun("optimising executor", reason))
    checks += [CheckResult(s.check, NOT_RUN, detail=s.reason) for s in skipped]
    outputs = _outputs(opened.contract, expectations, judged)
    seconds["compare"] = seconds.get("compare", 0.0) + time.perf_counter() - begun - spent
    return Leg(runner.name, runner.device, tuple(checks), outputs, run.evidence)


def _expectations(
    contract: Contract, cases: Sequence[Case], fresh: Sequence[Case] | None, runner: Runner
) -> tuple[list[Expectation], list[NotRun]]:
    # Compiled code has its dtypes; what runs operator by operator meets the host's default one.
    operators = runner.name not in ("onnxruntime", "aoti", "c")
    planned: list[Expectation | NotRun] = [
        *eager_parity.stored(cases),
        *(eager_parity.default_dtype(cases) if operators else []),
    ]
    anew = eager_parity.fresh(fresh)
    planned += [anew] if isinstance(anew, NotRun) else anew
    planned += batch_invariance.laws(contract, cases)
    planned += autograd.through(contract, cases)
    if runner.device != "cpu":
        planned += devices.on_device(contract, cases) if operators else devices.large(contract, cases)
    return (
        [p for p in planned if isinstance(p, Expectation)],
        [p for p in planned if isinstance(p, NotRun)],
    )


def _probes(contract: Contract, cases: Sequence[Case], parameters: Mapping[str, torch.Tensor]) -> list[Probe]:
    return [
        *finite_differences.probes(contract, cases, parameters),
        *derivative_consistency.products(contract, cases),
        *derivative_consistency.symmetry(contract, cases),
        *derivative_consistency.newton(contract, cases),
        *solver_status.stopped(contract, cases),
        *autograd.by_parameters(contract, cases, parameters),
    ]


# One comparison an output; a call that raised has a failed one with the error as its reason.
Judged = tuple[Comparison, ...]


def _judge(expectation: Expectation, result: Result, contract: Contract) -> Judged:
    names = contract.methods[expectation.returns or expectation.call.method].outputs
    if expectation.refusal:
        refused = expectation.refusal in result.error
        reason = "" if refused else f"{result.error or 'it ran'} instead of an error about the {expectation.refusal}"
        return tuple(Comparison(refused, reason) for _ in names)
    if result.error or len(result.outputs) != len(names):
        reason = result.error or f"{len(result.outputs)} outputs instead of {len(names)}"
        return tuple(Comparison(False, reason) for _ in names)
    judged = []
    for name, got, wanted in zip(names, result.outputs, expectation.outputs, strict=True):
        dtype = str(wanted.dtype).removeprefix("torch.")
        judged.append(compare(got, wanted, contract.tolerance.bounds(name, dtype)))
    return tuple(judged)


def _integrity(opened: Container) -> CheckResult:
    if isinstance(opened, Carried):
        opened = opened.archive
    if not isinstance(opened, Archive):
        return CheckResult(INTEGRITY, PASSED, detail=f"{len(opened.files)} files agree with the manifest")
    return CheckResult(INTEGRITY, PASSED, detail=f"{len(opened.records)} records agree with the manifest")


def _isolation(run: Run) -> CheckResult:
    """What the runner showed: every source library was tried and refused, and nothing foreign was loaded."""
    objects: Any = run.evidence.get("foreign_objects")
    if objects is not None:
        detail = f"loaded: {', '.join(objects)}" if objects else "no Python and no source library in the process"
        return CheckResult(ISOLATION, FAILED if objects else PASSED, detail=detail)
    refused: Any = run.evidence.get("refused")
    foreign: Any = run.evidence.get("foreign_modules")
    if refused is None or foreign is None:
        return CheckResult(ISOLATION, NOT_RUN, detail="this runner is no Python process")
    there = [name for name, outcome in refused.items() if outcome == "imported"] + list(foreign)
    if there:
        return CheckResult(ISOLATION, FAILED, detail=f"importable or loaded: {', '.join(there)}")
    shown = ", ".join(f"import {name} fails" for name in refused) or "nothing foreign loaded"
    return CheckResult(ISOLATION, PASSED, detail=shown)


def _contract(contract: Contract, run: Run) -> list[CheckResult]:
    """What the contract says of the module that was loaded: its parameters and methods."""
    if "foreign_objects" in run.evidence:
        return [CheckResult(CONTRACT, PASSED, detail="parameters and methods: compared at load")]
    parameters: Any = run.evidence.get("parameters")
    methods: Any = run.evidence.get("methods")
    if "signatures" in run.evidence:
        # The runner has compared names and types of its own kind.
        return []
    if parameters is None or methods is None:
        return [CheckResult(CONTRACT, NOT_RUN, detail="this runner does not list parameters and methods")]
    there = {(name, tuple(shape), dtype) for name, shape, dtype in parameters}
    said = {(p.name, p.shape, p.dtype) for p in contract.parameters}
    wrong = [name for name in contract.methods if name not in methods]
    # The file may hold parameters that the contract does not offer: constants of the trace.
    wrong += sorted({name for name, _, _ in said - there})
    if wrong:
        return [CheckResult(CONTRACT, FAILED, detail=f"not as in the file: {', '.join(wrong)}")]
    return [CheckResult(CONTRACT, PASSED, detail=f"{len(said)} parameters and {', '.join(contract.methods)} are there")]


def _harness(run: Run) -> list[CheckResult]:
    """The comparison that a harness made itself, where there is no Python."""
    cases: Any = run.evidence.get("cases")
    if cases is None:
        return []
    failed = [c for c in cases if not c["passed"]]
    if not failed:
        return [CheckResult(HARNESS, PASSED, len(cases), "the stored cases, compared in C++")]
    first = failed[0]
    detail = f"{len(failed)} of {len(cases)} outputs; first {first['case']!r}, {first['output']!r}: {first['reason']}"
    return [CheckResult(HARNESS, FAILED, len(cases), detail)]


def _check(name: str, results: Sequence[tuple[Expectation, Judged]]) -> CheckResult:
    bad = [(e, c) for e, judged in results for c in judged if not c.passed]
    if not bad:
        labels = ", ".join(e.label for e, _ in results)
        return CheckResult(name, PASSED, len(results), labels)
    expectation, comparison = bad[0]
    failed = {e.label for e, _ in bad}
    return CheckResult(
        name,
        FAILED,
        len(results),
        f"{len(failed)} of {len(results)} calls; first {expectation.label!r}: {comparison.reason}",
    )


def _outputs(
    contract: Contract, expectations: Sequence[Expectation], judged: Sequence[Judged]
) -> tuple[OutputResult, ...]:
    results = []
    for method, spec in contract.methods.items():
        for i, name in enumerate(spec.outputs):
            seen = [(e, j[i]) for e, j in zip(expectations, judged, strict=True) if e.call.method == method]
            if not seen:
                continue
            expectation, worst = max(seen, key=lambda pair: (not pair[1].passed, pair[1].max_abs))
            figures = dataclasses.replace(
                worst,
                max_abs=max(c.max_abs for _, c in seen),
                max_rel=max(c.max_rel for _, c in seen),
                max_ulp=max(c.max_ulp for _, c in seen),
            )
            text = name if isinstance(name, str) else "d {} / d {}".format(*name)
            at = f"{expectation.check}, {expectation.label}" if worst.worst or worst.reason else ""
            results.append(OutputResult(text, figures, at, _inputs_at(contract, expectation, worst)))
    return tuple(results)


def _inputs_at(contract: Contract, expectation: Expectation, worst: Comparison) -> dict[str, Any]:
    """The inputs of the element of the batch in which the worst element lies."""
    found: dict[str, Any] = {}
    names = contract.methods[expectation.call.method].inputs
    for name, value in zip(names, expectation.call.inputs, strict=True):
        lead = value.ndim - len(contract.taken(name).shape) if contract.batch.ndim else 0
        at = worst.worst[:lead]
        if len(at) == lead and all(i < n for i, n in zip(at, value.shape, strict=False)):
            element = value[at].tolist()
            found[name] = str(element) if value.is_complex() else element
    return found

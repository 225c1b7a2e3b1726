"""Verification of an archive: integrity, isolation, every check, one report."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from exporter.archive.cases import Cases, supports_case
from exporter.archive.contract import DEFAULT_TOLERANCE, Contract, name_output
from exporter.archive.pt_archive import Archive
from exporter.archive.tensor_spec import name_dtype
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
from runtime_checks.comparison import Comparison, compare_tensors
from runtime_checks.containers import Container
from runtime_checks.envelope import ENVELOPE, ERROR, OFF, list_excesses
from runtime_checks.kernels.embedded import EmbeddedKernel
from runtime_checks.native_code import GRAPHS, check_code_trust
from runtime_checks.report import FAILED, NOT_RUN, PASSED, CheckResult, OutputResult, Report, RuntimeReport
from runtime_checks.runners import fork_server
from runtime_checks.runners.base import CallResult, Run, Runner
from runtime_checks.runners.python_runner import PythonRunner

INTEGRITY, ISOLATION, CONTRACT = "integrity", "source library absent", "contract"
CONFINEMENT = "confinement"
HARNESS = "native comparison"


def collect_report(
    path: Path,
    *,
    fresh: Cases | None = None,
    runners: Sequence[Runner] = (),
    shown_as: Path | None = None,
    notes: Sequence[str] = (),
    envelope: str = OFF,
    trust: str = GRAPHS,
) -> Report:
    """Run every check on the archive at ``path`` and return the report; a mismatch is in the report, not raised.

    ``fresh`` are cases that an export made for the occasion; ``runners`` are runtimes on devices (a fresh Python on the
    CPU if none is given); ``shown_as`` is the name that the report gives a file that is yet to be renamed. Raise
    ``ArchiveError`` for a damaged file and for one that does not load, ``MissingRuntimeError`` for a missing runtime,
    ``TrustError`` for native code that was not made here, unless ``trust`` is ``native``.
    """
    runners = runners or (PythonRunner(),)
    seconds: dict[str, float] = {}
    start = time.perf_counter()
    opened = containers.open_container(path)
    cases = opened.cases()
    seconds["integrity"] = time.perf_counter() - start
    files = [containers.select_for_runtime(opened, runner.name) for runner in runners]
    for file in files:
        check_code_trust(file, path, trust)
    with fork_server.shared_fork_server():
        legs = [_verify_runtime(path, file, fresh, r, seconds) for file, r in zip(files, runners, strict=True)]
    excesses = list_excesses(opened.contract, cases) if envelope != OFF else []
    if envelope == ERROR:
        verdict = CheckResult(ENVELOPE, FAILED if excesses else PASSED, len(cases), "; ".join(excesses))
        legs = [dataclasses.replace(leg, checks=(*leg.checks, verdict)) for leg in legs]
    elif excesses:
        notes = (*notes, *(f"outside the envelope: {text}" for text in excesses))
    findings = tuple(map(dataclasses.asdict, dict.fromkeys(f for file in files for f in file.contract.findings)))
    archive, model = str(shown_as or path), opened.contract.name
    return Report(archive, model, tuple(legs), findings, seconds, tuple(notes))


def _verify_runtime(
    path: Path,
    opened: Container,
    fresh: Cases | None,
    runner: Runner,
    seconds: dict[str, float],
) -> RuntimeReport:
    """Run every check in one runtime on one device; add its seconds to ``seconds``."""
    cases = opened.cases()
    probes = _plan_probes(opened.contract, cases, containers.read_parameters(opened))
    if isinstance(opened, EmbeddedKernel) and fresh is not None:
        fresh = [case for case in fresh if supports_case(opened.contract, case)]
    expectations, skipped = _plan_expectations(opened.contract, cases, fresh, runner)
    begun = start = time.perf_counter()
    requests = [e.call for e in expectations] + [call for probe in probes for call in probe.calls]
    run = runner.run(path, opened.contract, requests)
    spent = time.perf_counter() - start
    answers = iter(run.results)
    judged = [_judge_call(e, r, opened.contract) for e, r in zip(expectations, answers, strict=False)]
    checks = [_judge_integrity(opened), _judge_isolation(run), _judge_confinement(run)]
    checks += [*_judge_contract(opened.contract, run), *_judge_harness(run)]
    verdicts = {True: PASSED, False: FAILED, None: NOT_RUN}
    checks += [CheckResult(v.check, verdicts[v.passed], detail=v.detail) for v in run.verdicts]
    groups: dict[str, list[tuple[Expectation, Judged]]] = {}
    for expectation, verdict in zip(expectations, judged, strict=True):
        groups.setdefault(expectation.check, []).append((expectation, verdict))
    checks += [_summarize_check(name, results) for name, results in groups.items()]
    answered = [(probe, list(itertools.islice(answers, len(probe.calls)))) for probe in probes]
    checks += [probe.judge(results) for probe, results in answered]
    # Follow-up calls that the results ask for go into another run.
    follow_ups = [follow_up for probe, results in answered if (follow_up := probe.further(results)) is not None]
    if follow_ups:
        start = time.perf_counter()
        further_calls = [call for probe in follow_ups for call in probe.calls]
        answers = iter(runner.run(path, opened.contract, further_calls).results)
        spent += time.perf_counter() - start
        checks += [probe.judge(list(itertools.islice(answers, len(probe.calls)))) for probe in follow_ups]
    seconds[f"fresh process, {runner.name}, {runner.device}"] = spent
    if run.evidence.get("optimised") is False:
        reason = f"a graph of {run.evidence['nodes']} nodes was run as it is: torch's optimiser takes minutes on it"
        skipped.append(NotRun("optimising executor", reason))
    checks += [CheckResult(s.check, NOT_RUN, detail=s.reason) for s in skipped]
    outputs = _summarize_outputs(opened.contract, expectations, judged)
    seconds["compare"] = seconds.get("compare", 0.0) + time.perf_counter() - begun - spent
    return RuntimeReport(runner.name, runner.device, tuple(checks), outputs, run.evidence)


def _plan_expectations(
    contract: Contract, cases: Cases, fresh: Cases | None, runner: Runner
) -> tuple[list[Expectation], list[NotRun]]:
    # Compiled code has fixed dtypes; operators run one by one see the host's default dtype.
    operators = runner.name not in ("onnxruntime", "aoti", "c", "cuda")
    planned: list[Expectation | NotRun] = [*eager_parity.stored_case_checks(cases)]
    planned += eager_parity.plan_default_dtype_checks(cases) if operators else []
    anew = eager_parity.plan_fresh_checks(fresh)
    planned += [anew] if isinstance(anew, NotRun) else anew
    planned += batch_invariance.batch_invariance_checks(contract, cases)
    planned += autograd.plan_autograd_checks(contract, cases)
    if runner.device != "cpu":
        plan = devices.plan_device_checks if operators else devices.plan_large_batch_checks
        planned += plan(contract, cases)
    return [p for p in planned if isinstance(p, Expectation)], [p for p in planned if isinstance(p, NotRun)]


def _plan_probes(contract: Contract, cases: Cases, parameters: Mapping[str, torch.Tensor]) -> list[Probe]:
    return [
        *finite_differences.plan_difference_probes(contract, cases, parameters),
        *derivative_consistency.derivative_product_checks(contract, cases),
        *derivative_consistency.plan_symmetry_probes(contract, cases),
        *derivative_consistency.plan_newton_probes(contract, cases),
        *solver_status.solver_status_checks(contract, cases),
        *autograd.plan_parameter_probes(contract, cases, parameters),
    ]


# One comparison per output; a call that raised gets failed ones with the error as the reason.
Judged = tuple[Comparison, ...]


def _judge_call(expectation: Expectation, result: CallResult, contract: Contract) -> Judged:
    names = contract.methods[expectation.returns or expectation.call.method].outputs
    if expectation.refusal:
        refused = expectation.refusal in result.error
        reason = "" if refused else f"{result.error or 'it ran'} instead of an error about the {expectation.refusal}"
        return tuple(Comparison(refused, reason) for _ in names)
    if result.error or len(result.outputs) != len(names):
        reason = result.error or f"{len(result.outputs)} outputs instead of {len(names)}"
        return tuple(Comparison(False, reason) for _ in names)
    judged = []
    scales = expectation.scales or (0.0,) * len(names)
    for name, got, expected, scale in zip(names, result.outputs, expectation.outputs, scales, strict=True):
        bounds = contract.tolerance.bounds(name, name_dtype(expected))
        judged.append(compare_tensors(got, expected, bounds, scale))
    return tuple(judged)


def _judge_integrity(opened: Container) -> CheckResult:
    if isinstance(opened, EmbeddedKernel):
        opened = opened.archive
    if not isinstance(opened, Archive):
        return CheckResult(INTEGRITY, PASSED, detail=f"{len(opened.files)} files agree with the manifest")
    return CheckResult(INTEGRITY, PASSED, detail=f"{len(opened.records)} records agree with the manifest")


def _judge_isolation(run: Run) -> CheckResult:
    """Judge the runner's evidence: every source library was tried and refused, and nothing foreign was loaded."""
    objects: Any = run.evidence.get("foreign_objects")
    if objects is not None:
        detail = f"loaded: {', '.join(objects)}" if objects else "no Python and no source library in the process"
        return CheckResult(ISOLATION, FAILED if objects else PASSED, detail=detail)
    refused: Any = run.evidence.get("refused")
    foreign: Any = run.evidence.get("foreign_modules")
    if refused is None or foreign is None:
        return CheckResult(ISOLATION, NOT_RUN, detail="this runner is not a Python process")
    present = [name for name, outcome in refused.items() if outcome == "imported"] + list(foreign)
    if present:
        return CheckResult(ISOLATION, FAILED, detail=f"importable or loaded: {', '.join(present)}")
    shown = ", ".join(f"import {name} fails" for name in refused) or "nothing foreign loaded"
    return CheckResult(ISOLATION, PASSED, detail=shown)


def _judge_confinement(run: Run) -> CheckResult:
    """Judge what kept the process from the rest of the machine; what the system lacks is no fault of the file."""
    report: Any = run.evidence.get("confinement")
    if report is None:
        return CheckResult(CONFINEMENT, NOT_RUN, detail="this runner does not confine its process")
    detail = "; ".join([*report["in force"], *(f"not in force: {text}" for text in report["missing"])])
    return CheckResult(CONFINEMENT, NOT_RUN if report["missing"] else PASSED, detail=detail)


def _judge_contract(contract: Contract, run: Run) -> list[CheckResult]:
    """Judge the loaded module by the contract: its parameters and methods."""
    if "foreign_objects" in run.evidence:
        return [CheckResult(CONTRACT, PASSED, detail="parameters and methods: compared at load")]
    parameters: Any = run.evidence.get("parameters")
    methods: Any = run.evidence.get("methods")
    if "signatures" in run.evidence:
        # The runner has compared its own names and types.
        return []
    if parameters is None or methods is None:
        return [CheckResult(CONTRACT, NOT_RUN, detail="this runner does not list parameters and methods")]
    present = {(name, tuple(shape), dtype) for name, shape, dtype in parameters}
    declared = {(p.name, p.shape, p.dtype) for p in contract.parameters}
    wrong = [name for name in contract.methods if name not in methods]
    # The file may hold parameters that the contract does not offer: constants of the trace.
    wrong += sorted({name for name, _, _ in declared - present})
    if wrong:
        return [CheckResult(CONTRACT, FAILED, detail=f"differs from the file: {', '.join(wrong)}")]
    detail = f"{len(declared)} parameters and {', '.join(contract.methods)} are there"
    return [CheckResult(CONTRACT, PASSED, detail=detail)]


def _judge_harness(run: Run) -> list[CheckResult]:
    """Judge the comparison that a harness made itself, without Python."""
    cases: Any = run.evidence.get("cases")
    if cases is None:
        return []
    failed = [c for c in cases if not c["passed"]]
    if not failed:
        return [CheckResult(HARNESS, PASSED, len(cases), "the stored cases, compared in C++")]
    first = failed[0]
    detail = f"{len(failed)} of {len(cases)} outputs; first {first['case']!r}, {first['output']!r}: {first['reason']}"
    return [CheckResult(HARNESS, FAILED, len(cases), detail)]


def _summarize_check(name: str, results: Sequence[tuple[Expectation, Judged]]) -> CheckResult:
    bad = [(e, c) for e, judged in results for c in judged if not c.passed]
    if not bad:
        labels = ", ".join(e.label for e, _ in results)
        return CheckResult(name, PASSED, len(results), labels)
    expectation, comparison = bad[0]
    failed = {e.label for e, _ in bad}
    counts = f"{len(failed)} of {len(results)} calls"
    return CheckResult(name, FAILED, len(results), f"{counts}; first {expectation.label!r}: {comparison.reason}")


def _summarize_outputs(
    contract: Contract, expectations: Sequence[Expectation], judged: Sequence[Judged]
) -> tuple[OutputResult, ...]:
    results = []
    for method, spec in contract.methods.items():
        for i, name in enumerate(spec.outputs):
            compared = [(e, j[i]) for e, j in zip(expectations, judged, strict=True) if e.call.method == method]
            if not compared:
                continue
            expectation, worst = max(compared, key=lambda pair: (not pair[1].passed, pair[1].max_abs))
            largest = {k: max(getattr(c, k) for _, c in compared) for k in ("max_abs", "max_rel", "max_ulp")}
            figures = dataclasses.replace(worst, **largest)
            text = name_output(name)
            location = f"{expectation.check}, {expectation.label}" if worst.worst or worst.reason else ""
            inputs = _select_worst_inputs(contract, expectation, worst)
            bounds, usual = (
                t.bounds(name, contract.output_spec(name).dtype) for t in (contract.tolerance, DEFAULT_TOLERANCE)
            )
            results.append(OutputResult(text, figures, location, bounds, bounds.is_wider(usual), inputs))
    return tuple(results)


def _select_worst_inputs(contract: Contract, expectation: Expectation, worst: Comparison) -> dict[str, Any]:
    """Return the inputs of the batch element in which the worst element lies."""
    selected: dict[str, Any] = {}
    names = contract.methods[expectation.call.method].inputs
    for name, value in zip(names, expectation.call.inputs, strict=True):
        batch_ndim = value.ndim - len(contract.input_spec(name).shape) if contract.batch.ndim else 0
        index = worst.worst[:batch_ndim]
        if len(index) == batch_ndim and all(i < n for i, n in zip(index, value.shape, strict=False)):
            element = value[index].tolist()
            selected[name] = str(element) if value.is_complex() else element
    return selected

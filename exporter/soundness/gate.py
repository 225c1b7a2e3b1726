"""The gate: all checks in order, the user's allowances, and the refusal."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch

from exporter.archive.contract import Finding
from exporter.capture.determinant_gradients import has_other_gradients
from exporter.capture.passes import CaptureResult
from exporter.common.errors import UnsoundError, UsageError, suggest_names
from exporter.common.forking import DEFAULT_SECONDS, ForkedCall, ForkFailedError
from exporter.model.eager.warmup import FirstRun, Warmup
from exporter.soundness.branch_search import ChosenDraws
from exporter.soundness.check_context import CaptureContext, EagerContext
from exporter.soundness.checks import (
    batch_ranks,
    batch_sizes,
    data_reads,
    devices,
    dtypes,
    environment,
    exceptions,
    execution_context,
    hash_seed,
    hidden_state,
    hooks,
    input_values,
    random_numbers,
    settings,
    torch_export_opinion,
    unused_variables,
)
from exporter.soundness.clean_room import CleanRooms
from exporter.soundness.first_calls import FirstCalls, observe_first_calls
from exporter.soundness.probe_inputs import LIMIT, Draws, draw_probe_inputs, keep_affordable_draws

_Context = TypeVar("_Context", EagerContext, CaptureContext)
# The findings and the seconds of each check.
Results = Generator[tuple[list[Finding], float], None, None]

# Checks of eager mode, before a capture of it can mean anything.
_EAGER_CHECKS = (
    random_numbers, environment, hidden_state, settings, hash_seed, execution_context,
    hooks, exceptions, devices, data_reads, batch_ranks, unused_variables,
)  # fmt: skip
_BEFORE: Mapping[str, Callable[[EagerContext], list[Finding]]] = {m.CHECK: m.check for m in _EAGER_CHECKS}
# Checks of a capture against eager mode.
_CAPTURE_CHECKS = (batch_sizes, input_values, dtypes)
_AFTER: Mapping[str, Callable[[CaptureContext], list[Finding]]] = {m.CHECK: m.check for m in _CAPTURE_CHECKS}
RUNS = (*_BEFORE, *_AFTER)
# Names of findings; one run may look for several faults.
CHECKS = (*RUNS, hidden_state.WRITES, *execution_context.OTHER_CHECKS, unused_variables.OUTPUT, "precision")


@dataclasses.dataclass(frozen=True)
class Allowance:
    """An allowance ``CHECK:REASON``: an unsound finding of this check passes, for this reason."""

    check: str
    reason: str

    @classmethod
    def parse(cls, text: str) -> Allowance:
        """Read ``CHECK:REASON``. Raises ``UsageError``."""
        check, _, reason = text.partition(":")
        if check not in CHECKS or not reason.strip():
            got = f"check {check!r}" + ("" if reason.strip() else " without a reason")
            expected = f"CHECK:REASON, CHECK {suggest_names(check, CHECKS)}"
            raise UsageError("the allowance is not clear", where=f"--allow {text!r}", got=got, expected=expected)
        return cls(check, reason.strip())


@dataclasses.dataclass(frozen=True)
class GateOptions:
    """The user's ``allowances``, whether costly models run all draws (``thorough``), whether ``torch.export`` is asked
    too (``second_opinion``), which takes some seconds, how many checks run at the same time (``jobs``), the seconds
    that each may take (``limit``), and who is told of each check that ended: its name, how many of how many have, its
    seconds (``report``)."""

    allowances: Sequence[Allowance] = ()
    thorough: bool = False
    second_opinion: bool = False
    jobs: int = 1
    limit: float = DEFAULT_SECONDS
    report: Callable[[str, int, int, float], Any] = lambda name, done, total, seconds: None


@dataclasses.dataclass(frozen=True)
class EagerChecks:
    """The checks of eager mode, ready to run in ``context``, whose draws are all that they choose from.

    Every choice begins with the first draw, which is to be traced."""

    first: FirstRun
    context: EagerContext
    options: GateOptions

    def run(self) -> tuple[EagerContext, tuple[Finding, ...]]:
        """Choose draws from the model's first calls, and run the checks; return their context and the findings.

        Raises ``UnsoundError``."""
        options = self.options
        calls, findings = _observe_first_calls(self.first, self.context.room, self.context.draws, options)
        context = dataclasses.replace(self.context, draws=calls.chosen.draws, code_numbers=calls.code_numbers)
        if options.second_opinion:
            opinion, _ = _run_check(torch_export_opinion.CHECK, torch_export_opinion.check, context)
            findings += opinion
        _collect(context.source.name, _BEFORE, _run_in_rooms(_BEFORE, context, calls.quiet), findings, options)
        return context, apply_allowances(findings, options.allowances)


def make_eager_checks(first: FirstRun, room: CleanRooms, seed: int, options: GateOptions) -> EagerChecks:
    """Draw the inputs that the checks of eager mode may run."""
    generator = torch.Generator().manual_seed(seed)
    traced, other_size = first.sizes
    probes = draw_probe_inputs(first.sampler, traced, generator)
    other_inputs = first.sampler.draw(other_size, generator)
    return EagerChecks(first, EagerContext(first.source, probes, other_inputs, room), options)


def _observe_first_calls(
    first: FirstRun, room: CleanRooms, probes: Draws, options: GateOptions
) -> tuple[FirstCalls, list[Finding]]:
    """Return what the first calls show, and the findings about draws that are not run."""
    findings: list[Finding] = []

    def report_left_out(count: int, seconds: float) -> None:
        reason = f"they would take about {seconds:.{1 if seconds < 10 else 0}f} s in eager mode (--thorough)"
        findings.append(Finding(input_values.CHECK, f"{count} draws were not run", reason=reason))

    limit = math.inf if options.thorough else LIMIT
    if first.is_slow and not options.thorough:
        few, limit = keep_affordable_draws(probes, first.seconds, 0.0), math.inf
        report_left_out(len(probes) - len(few), (len(probes) - len(few)) * first.seconds)
        probes = few
    start = time.perf_counter()
    try:
        calls = room(observe_first_calls, probes, first.cost.estimate(first.sizes[0]), limit)
    except ForkFailedError as error:
        findings.append(_make_not_run_finding(data_reads.CHECK, f"inputs for every branch: {error}"))
        return FirstCalls(ChosenDraws(probes)), findings
    options.report("first calls", 0, len(RUNS), time.perf_counter() - start)
    if calls.chosen.left_out:
        report_left_out(calls.chosen.left_out, calls.chosen.seconds)
    return calls, findings


def check_after_capture(
    warm: Warmup, captured: CaptureResult, eager: EagerContext, before: Sequence[Finding], options: GateOptions
) -> tuple[Finding, ...]:
    """Check the capture against the model; ``eager`` and ``before`` are the context of the earlier checks and their
    findings. Raises ``UnsoundError``."""
    is_other, limit = has_other_gradients(warm.source, captured.operators), options.limit
    context = CaptureContext(
        warm, captured.module, eager.draws, captured.tracer_warnings, is_other, limit, eager.code_numbers
    )
    findings = [*before, *captured.findings]
    _collect(warm.source.name, _AFTER, _run_in_forks(_AFTER, context, options.jobs), findings, options)
    return apply_allowances(findings, options.allowances)


def _collect(
    model: str, checks: Iterable[str], results: Results, findings: list[Finding], options: GateOptions
) -> None:
    """Add the findings of each check in order, and report that it has ended. Raises ``UnsoundError``, and ends the
    checks that still run."""
    with contextlib.closing(results):
        for name, (new_findings, seconds) in zip(checks, results, strict=True):
            findings += new_findings
            require_sound(model, findings, options.allowances)
            options.report(name, RUNS.index(name) + 1, len(RUNS), seconds)


def _run_in_rooms(
    checks: Mapping[str, Callable[[EagerContext], list[Finding]]], context: EagerContext, quiet: frozenset[str]
) -> Results:
    """Yield the result of each check in order, at once of those that are ``quiet``; as many run at the same time as
    there are rooms."""
    with ThreadPoolExecutor(context.room.count) as threads:
        loud = {name: check for name, check in checks.items() if name not in quiet}
        pending = {name: threads.submit(_run_check, name, check, context) for name, check in loud.items()}
        try:
            for name in checks:
                yield pending[name].result() if name in pending else ([], 0.0)
        except BaseException:
            # Nobody asks for the results of the others.
            threads.shutdown(wait=False, cancel_futures=True)
            context.room.close()
            raise


def _run_in_forks(
    checks: Mapping[str, Callable[[CaptureContext], list[Finding]]], context: CaptureContext, jobs: int
) -> Results:
    """Yield the result of each check in order; ``jobs`` of them run at the same time, each in a forked process."""
    waiting, running = deque(checks.items()), deque[tuple[str, ForkedCall]]()
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                name, check = waiting.popleft()
                running.append((name, ForkedCall(_run_check, name, check, context)))
            name, call = running[0]
            try:
                result = call.wait(context.limit)
            except ForkFailedError as error:
                result = [_make_not_run_finding(name, str(error))], 0.0
            running.popleft()
            yield result
    finally:
        for _, call in running:
            call.end()


def _run_check(name: str, check: Callable[[_Context], list[Finding]], context: _Context) -> tuple[list[Finding], float]:
    """Return the findings of a check, and its seconds."""
    start = time.perf_counter()
    try:
        findings = check(context)
    except ForkFailedError as error:
        findings = [_make_not_run_finding(name, str(error))]
    return findings, time.perf_counter() - start


def _make_not_run_finding(name: str, why: str) -> Finding:
    return Finding(name, "the check could not run", reason=why, severity="not run")


def apply_allowances(findings: Sequence[Finding], allowances: Sequence[Allowance]) -> tuple[Finding, ...]:
    """Return the findings without repetition, unsound ones as allowed with the user's reason."""
    reasons = {a.check: a.reason for a in allowances}
    return tuple(
        dataclasses.replace(f, severity="allowed", reason=reasons[f.check]) if f.severity == "unsound" else f
        for f in dict.fromkeys(findings)
    )


def require_sound(name: str, findings: Sequence[Finding], allowances: Sequence[Allowance]) -> None:
    """Raise ``UnsoundError`` for the first finding that is unsound and not allowed."""
    allowed_checks = {a.check for a in allowances}
    unsound = [f for f in findings if f.severity == "unsound" and f.check not in allowed_checks]
    if not unsound:
        return
    first = unsound[0]
    others = dict.fromkeys(f"{f.check} at {f.where}" for f in unsound[1:])
    error = UnsoundError(
        f"model {name!r} cannot be captured soundly: {first.what}",
        check=first.check,
        where=first.where,
        got=first.evidence + (f" (also: {'; '.join(others)})" if others else ""),
        expected="a forward that is captured completely",
        mend=f"{first.mend}; or " * bool(first.mend) + f"--allow '{first.check}:REASON', which every report will show",
    )
    error.findings = (*unsound, *(f for f in findings if f not in unsound))
    raise error

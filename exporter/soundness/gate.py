"""The gate: all checks in order, what the user allows, and the refusal."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import torch

from exporter.archive.contract import Finding
from exporter.capture.tracing import Captured
from exporter.common.errors import UnsoundError, UsageError, near
from exporter.common.forking import NotRun
from exporter.model.eager.warmup import FirstRun, Warmup
from exporter.soundness.branch_search import guided
from exporter.soundness.check_context import Eager, Subject
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
from exporter.soundness.clean_room import CleanRoom
from exporter.soundness.probe_inputs import Draws, draws, timely_labels

_Looked = TypeVar("_Looked", Eager, Subject)

# What eager mode must be before a capture of it can mean anything.
_BEFORE: Mapping[str, Callable[[Eager], list[Finding]]] = {
    random_numbers.CHECK: random_numbers.check,
    environment.CHECK: environment.check,
    hidden_state.CHECK: hidden_state.check,
    settings.CHECK: settings.check,
    hash_seed.CHECK: hash_seed.check,
    execution_context.GRAD: execution_context.check,
    hooks.CHECK: hooks.check,
    exceptions.CHECK: exceptions.check,
    devices.CHECK: devices.check,
    data_reads.CHECK: data_reads.check,
    batch_ranks.CHECK: batch_ranks.check,
    unused_variables.INPUT: unused_variables.check,
}
# A capture held against eager mode.
_AFTER: Mapping[str, Callable[[Subject], list[Finding]]] = {
    batch_sizes.CHECK: batch_sizes.check,
    input_values.CHECK: input_values.check,
    dtypes.CHECK: dtypes.check,
}
RUNS = (*_BEFORE, *_AFTER)
# What a finding may be called; a run may look for several faults.
CHECKS = (
    *RUNS,
    hidden_state.WRITES,
    execution_context.DTYPE,
    execution_context.THREADS,
    execution_context.LAYOUT,
    execution_context.ALIAS,
    unused_variables.OUTPUT,
    "precision",
)


@dataclasses.dataclass(frozen=True)
class Allowance:
    """``CHECK:REASON``: an unsound finding of this check is let pass, for this reason."""

    check: str
    reason: str

    @classmethod
    def parse(cls, text: str) -> Allowance:
        check, colon, reason = text.partition(":")
        if check not in CHECKS or not reason.strip():
            raise UsageError(
                "what is allowed is not clear",
                where=f"--allow {text!r}",
                got=f"check {check!r}" + ("" if colon and reason.strip() else " without a reason"),
                expected=f"CHECK:REASON, CHECK {near(check, CHECKS)}",
            )
        return cls(check, reason.strip())


def before_capture(
    first: FirstRun,
    room: CleanRoom,
    seed: int,
    allowed: Sequence[Allowance] = (),
    *,
    opinion: bool = False,
) -> tuple[tuple[Finding, ...], Draws]:
    """What the model does by itself, and the draws for what follows, the first of which is to be traced.

    ``opinion`` asks ``torch.export``, too, which takes some seconds. Raises ``UnsoundError``.
    """
    generator = torch.Generator().manual_seed(seed)
    traced, other = first.sizes
    drawn = draws(first.sampler, traced, generator)
    found: list[Finding] = []
    try:
        timely = room(timely_labels, drawn)
        drawn = tuple((label, inputs) for label, inputs in drawn if label in timely)
        drawn += room(guided, drawn)
    except NotRun as error:
        found.append(_not_run(data_reads.CHECK, f"inputs for every branch: {error}"))
    eager = Eager(first.source, drawn, first.sampler.draw(other, generator), room)
    if opinion:
        found += _run(torch_export_opinion.CHECK, torch_export_opinion.check, eager)
    for name, check in _BEFORE.items():
        found += _run(name, check, eager)
        refuse(first.source.name, found, allowed)
    return accepted(found, allowed), drawn


def after_capture(
    warm: Warmup,
    captured: Captured,
    drawn: Draws,
    before: Sequence[Finding] = (),
    allowed: Sequence[Allowance] = (),
) -> tuple[Finding, ...]:
    """The capture against the model; ``before`` is what was found already. Raises ``UnsoundError``."""
    subject = Subject(warm, captured.module, drawn, captured.warned)
    found = [*before, *captured.findings]
    for name, check in _AFTER.items():
        found += _run(name, check, subject)
        refuse(warm.source.name, found, allowed)
    return accepted(found, allowed)


def _run(name: str, check: Callable[[_Looked], list[Finding]], at: _Looked) -> list[Finding]:
    try:
        return check(at)
    except NotRun as error:
        return [_not_run(name, str(error))]


def _not_run(name: str, why: str) -> Finding:
    return Finding(name, "the check could not run", reason=why, severity="not run")


def accepted(found: Sequence[Finding], allowed: Sequence[Allowance]) -> tuple[Finding, ...]:
    reasons = {a.check: a.reason for a in allowed}
    return tuple(
        dataclasses.replace(f, severity="allowed", reason=reasons[f.check]) if f.severity == "unsound" else f
        for f in dict.fromkeys(found)
    )


def refuse(name: str, found: Sequence[Finding], allowed: Sequence[Allowance]) -> None:
    """Raises ``UnsoundError`` for the first finding that is unsound and not allowed."""
    reasons = {a.check for a in allowed}
    unsound = [f for f in found if f.severity == "unsound" and f.check not in reasons]
    if not unsound:
        return
    first = unsound[0]
    others = dict.fromkeys(f"{f.check} at {f.where}" for f in unsound[1:])
    error = UnsoundError(
        f"model {name!r} cannot be captured soundly: {first.what}",
        check=first.check,
        where=first.where,
        got=first.evidence + (f" (also: {'; '.join(others)})" if others else ""),
        expected="a forward that is captured whole",
        mend=f"{first.mend}; or --allow '{first.check}:REASON', which every report will show",
    )
    error.findings = (*unsound, *(f for f in found if f not in unsound))
    raise error

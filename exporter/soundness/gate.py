"""The gate: all checks in order, what the user allows, and the refusal."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import torch

from exporter.capture.trace import Captured
from exporter.contract import Finding
from exporter.errors import UnsoundError, UsageError, near
from exporter.forked import NotRun
from exporter.soundness import (
    batch_sizes,
    conditions,
    data_reads,
    devices,
    exceptions,
    hash_seed,
    hooks,
    outside,
    random_numbers,
    ranks,
    second_opinion,
    settings,
    state,
    types_of_numbers,
    unused,
    values,
)
from exporter.soundness.draws import Draws, draws, timely_labels
from exporter.soundness.guided import guided
from exporter.soundness.isolation import CleanRoom
from exporter.soundness.subject import Eager, Subject
from exporter.warmup import FirstRun, Warmup

_Looked = TypeVar("_Looked", Eager, Subject)

# What eager mode must be before a capture of it can mean anything.
_BEFORE: Mapping[str, Callable[[Eager], list[Finding]]] = {
    random_numbers.CHECK: random_numbers.check,
    outside.CHECK: outside.check,
    state.CHECK: state.check,
    settings.CHECK: settings.check,
    hash_seed.CHECK: hash_seed.check,
    conditions.GRAD: conditions.check,
    hooks.CHECK: hooks.check,
    exceptions.CHECK: exceptions.check,
    devices.CHECK: devices.check,
    data_reads.CHECK: data_reads.check,
    ranks.CHECK: ranks.check,
    unused.INPUT: unused.check,
}
# A capture held against eager mode.
_AFTER: Mapping[str, Callable[[Subject], list[Finding]]] = {
    batch_sizes.CHECK: batch_sizes.check,
    values.CHECK: values.check,
    types_of_numbers.CHECK: types_of_numbers.check,
}
RUNS = (*_BEFORE, *_AFTER)
# What a finding may be called; a run may look for several faults.
CHECKS = (
    *RUNS,
    state.WRITES,
    conditions.DTYPE,
    conditions.THREADS,
    conditions.LAYOUT,
    conditions.ALIAS,
    unused.OUTPUT,
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
        found += _run(second_opinion.CHECK, second_opinion.check, eager)
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

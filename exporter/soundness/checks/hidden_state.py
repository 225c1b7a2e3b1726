"""Hidden state: what one call leaves behind for the next, in inputs, parameters, buffers, attributes or globals.

The model runs from the state before its first call. A write to inputs, parameters or buffers is unsound. Other state
is judged by its effect: outputs must not depend on which calls came before, on memory that is written anew, or on a
counter's value.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from exporter.archive.contract import Finding
from exporter.model.eager.evaluation import forward_line, inference_conditions
from exporter.model.source import Inputs, Source
from exporter.soundness.check_context import Eager, Outputs, difference_between, eager, same_outputs
from exporter.soundness.checks.random_numbers import draws_random_numbers
from exporter.soundness.culprit_line import line_that
from exporter.soundness.footprint import Footprint, Leaf, other_values
from exporter.soundness.run_recording import digest

CHECK, WRITES = "hidden state", "side effect"
REPEATS, SECONDS = 60, 0.25


def check(eager_mode: Eager) -> list[Finding]:
    room = eager_mode.room
    draws = [*(inputs for _, inputs in eager_mode.draws[:2]), eager_mode.other]
    found = room(_writes, draws[0])
    if found:
        label = found[0].what.removeprefix("the model writes to ")
        where = room(_writing_line, draws[0], label) or found[0].where
        return [dataclasses.replace(found[0], where=where), *found[1:]]
    if room(draws_random_numbers, draws[0]):
        # Two runs differ by themselves then, and another check says why.
        return found
    fresh = [room(_first_call, inputs) for inputs in draws]
    found += room(_history, draws, fresh) or room(_counters, draws)
    first = found[0] if found else None
    if first is not None and first.severity == "unsound":
        where = room(_first_write, draws) or first.where
        return [dataclasses.replace(first, where=where), *found[1:]]
    return found


def _first_write(source: Source, draws: Sequence[Inputs]) -> str:
    """The first line that changes state, from the state before the first call."""
    with inference_conditions(source), Footprint() as footprint:

        def reached() -> dict[str, str]:
            gradients = {
                f"attribute 'grad' of {name!r}": str(_content(p.grad))
                for name, p in source.named.named_parameters()
                if p.grad is not None
            }
            return {n: leaf.fingerprint for n, leaf in footprint.state(source.named).items()} | gradients

        return line_that(lambda: [eager(source, inputs) for inputs in draws], reached, state_changed)


def state_changed(before: dict[str, str], after: dict[str, str]) -> bool:
    """What comes into reach only because more code ran is no change, but for a new attribute."""
    return any(
        before[label] != text if label in before else label.startswith("attribute") for label, text in after.items()
    )


def _first_call(source: Source, inputs: Inputs) -> Outputs:
    with inference_conditions(source):
        return eager(source, inputs)


def _writes(source: Source, inputs: Inputs) -> list[Finding]:
    """Writes to what the caller or the file owns."""
    with inference_conditions(source):
        given = tuple(t.clone() for t in inputs)
        before = {label: _content(value) for label, value in _owned(source, given).items()}
        if any(isinstance(eager(source, given, as_they_are=True), str) for _ in range(2)):
            return []
        after = {label: _content(value) for label, value in _owned(source, given).items()}
        touched = [label for label in dict.fromkeys([*before, *after]) if before.get(label) != after.get(label)]
        return [
            Finding(
                WRITES,
                f"the model writes to {label}",
                forward_line(source),
                severity="unsound",
                evidence="another value, or a write in place, after a call",
                mend="work on a copy (x = x.clone(), no inplace=True on an input); return state instead of storing it",
            )
            for label in touched
        ]


def _writing_line(source: Source, inputs: Inputs, label: str) -> str:
    """Where the model writes to what has this label: in its first call, or in a later one."""
    given = tuple(t.clone() for t in inputs)

    def content() -> Any:
        held = _owned(source, given).get(label)
        return held is not None and _content(held)

    with inference_conditions(source):
        return line_that(lambda: [eager(source, given, as_they_are=True) for _ in range(2)], content)


def _owned(source: Source, given: Inputs) -> dict[str, torch.Tensor]:
    named = [*(("input", s.name, t) for s, t in zip(source.inputs, given, strict=True))]
    named += [("parameter", *p) for p in source.named.named_parameters()]
    named += [("buffer", *b) for b in source.named.named_buffers()]
    return {f"{kind} {name!r}": value for kind, name, value in named}


def _content(value: torch.Tensor) -> tuple[int, str]:
    """With the number of writes in place: those of equal values count, too."""
    return value._version, digest(value.to_dense() if value.layout != torch.strided else value)


def _history(source: Source, draws: Sequence[Inputs], fresh: Sequence[Any]) -> list[Finding]:
    """Outputs of later calls against those of first calls."""
    with inference_conditions(source):

        def unsound(what: str, evidence: str) -> list[Finding]:
            return [_unsound(source, what, evidence, "")]

        order = [0, 0, *range(len(draws)), *reversed(range(len(draws))), 0]
        for i in order:
            apart = difference_between(eager(source, draws[i]), fresh[i])
            if apart:
                return unsound("a call gives other outputs than the same call made first", apart)
        # A solver writes the next state where the last one was.
        memory = tuple(t.clone() for t in draws[0])
        eager(source, memory, as_they_are=True)
        for held, new in zip(memory, draws[1], strict=True):
            if held.shape == new.shape:
                held.copy_(new)
        later = eager(source, memory, as_they_are=True)
        if all(t.shape == new.shape for t, new in zip(memory, draws[1], strict=True)) and not same_outputs(
            later, fresh[1]
        ):
            return unsound("inputs that were written anew give the old outputs", difference_between(later, fresh[1]))
        start, count = time.perf_counter(), 0
        while count < REPEATS and (time.perf_counter() - start < SECONDS or count < 3):
            count += 1
            if not same_outputs(eager(source, draws[0]), fresh[0]):
                return unsound("equal calls give different outputs", f"after {count + len(order)} calls")
    return []


def _counters(source: Source, draws: Sequence[Inputs]) -> list[Finding]:
    """State that changes from call to call, set to other values."""
    with inference_conditions(source), Footprint() as footprint:
        eager(source, draws[0])
    with inference_conditions(source):
        states: list[Mapping[str, Leaf]] = []
        for inputs in (draws[0], draws[0], draws[1], draws[-1], draws[0]):
            reference = eager(source, inputs)
            states.append(footprint.state(source.named))
        moving = [
            label
            for label in dict.fromkeys(label for state in states for label in state)
            if len({state[label].fingerprint if label in state else "" for state in states[:-1]}) > 1
        ]
        found = []
        for label in moving:
            leaf = states[-1].get(label)
            if leaf is None or leaf.put is None:
                continue
            put = leaf.put
            for value in other_values(leaf.value):
                with contextlib.suppress(IndexError, KeyError, AttributeError):
                    # What held it may have moved on.
                    put(value)
                outputs = eager(source, draws[0])
                if not same_outputs(outputs, reference):
                    where = _writer(source, draws[0], footprint, label)
                    what = f"{label} changes from call to call, and outputs depend on it"
                    evidence = f"with {str(value)[:40]!r} in it: {difference_between(outputs, reference)}"
                    return [_unsound(source, what, evidence, where)]
            found.append(label)
        if not found:
            return []
        where = _writer(source, draws[0], footprint, found[0])
        text = f"changes from call to call: {', '.join(found[:5])}"
        return [Finding(CHECK, text, where, reason="no output depends on it; the file does not keep it")]


def _writer(source: Source, inputs: Inputs, footprint: Footprint, label: str) -> str:
    def fingerprint() -> str:
        leaf = footprint.state(source.named).get(label)
        return leaf.fingerprint if leaf else ""

    return line_that(lambda: eager(source, inputs), fingerprint)


def _unsound(source: Source, what: str, evidence: str, where: str) -> Finding:
    return Finding(
        CHECK,
        what,
        where or forward_line(source),
        severity="unsound",
        evidence=evidence,
        mend="make what is kept an input and an output of the model, or compute it in __init__",
    )

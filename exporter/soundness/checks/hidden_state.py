"""Check of hidden state: what one call leaves for the next, in inputs, parameters, buffers, attributes or globals.

The model runs from the state before its first call. A write to inputs, parameters or buffers is unsound. Other state
is judged by its effect: outputs must not depend on earlier calls, on memory that is overwritten, or on a counter's
value."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from exporter.archive.contract import Finding
from exporter.model.eager.evaluation import eager_context, find_forward_line
from exporter.model.source import Inputs, Source
from exporter.soundness.check_context import (
    EagerContext,
    Outputs,
    describe_difference,
    make_refusal,
    outputs_equal,
    run_eager,
)
from exporter.soundness.checks.random_numbers import read_generator_states
from exporter.soundness.culprit_line import find_culprit_line
from exporter.soundness.footprint import Footprint, Leaf, make_other_values
from exporter.soundness.run_recording import fingerprint_tensor

CHECK, WRITES = "hidden state", "side effect"
REPEATS, SECONDS = 60, 0.25
# Numbers of the code that a count is set to, and counts of which this is tried.
MAX_COUNTS, MAX_COUNTERS = 20, 10
_MEND = "make the state an input and an output of the model, or compute it in __init__"
_MEND_WRITES = "work on a copy (x = x.clone(), no inplace=True on an input); return state instead of storing it"


def check(context: EagerContext) -> list[Finding]:
    """Check that outputs do not depend on earlier calls, and that a call writes to nothing that outlives it."""
    room = context.room
    draws = [*(inputs for _, inputs in context.draws[:2]), context.other_inputs]
    findings, draws_numbers, first_output = room(_run_twice, draws[0])
    if findings:
        label = findings[0].what.removeprefix("the model writes to ")
        where = room(_find_writing_line, draws[0], label) or findings[0].where
        return [dataclasses.replace(findings[0], where=where), *findings[1:]]
    if draws_numbers:
        # Two runs differ by themselves then, and another check reports it.
        return findings
    first_outputs = [first_output, *(room(run_eager, inputs) for inputs in draws[1:])]
    findings += room(_check_later_calls, draws, first_outputs, context.code_numbers)
    if findings and findings[0].severity == "unsound":
        where = room(_find_first_write, draws) or findings[0].where
        return [dataclasses.replace(findings[0], where=where), *findings[1:]]
    return findings


def _find_first_write(source: Source, draws: Sequence[Inputs]) -> str:
    """Return the first line that changes state, from the state before the first call."""
    with Footprint() as footprint:

        def read_fingerprints() -> dict[str, str]:
            parameters = source.parameter_module.named_parameters()
            grads = {f"attribute 'grad' of {name!r}": p.grad for name, p in parameters if p.grad is not None}
            fingerprints = {label: str(fingerprint_tensor(grad)) for label, grad in grads.items()}
            return footprint.read_fingerprints(source.parameter_module) | fingerprints

        def run_all() -> list[Any]:
            return [run_eager(source, inputs) for inputs in draws]

        return find_culprit_line(run_all, read_fingerprints, is_state_changed)


def is_state_changed(before: dict[str, str], after: dict[str, str]) -> bool:
    """Return whether state changed.

    State that becomes reachable only because more code ran is no change, except for a new attribute."""
    new = [label for label in after if label not in before]
    return any(before[n] != after[n] for n in after if n in before) or any(n.startswith("attribute") for n in new)


def _run_twice(source: Source, inputs: Inputs) -> tuple[list[Finding], bool, Outputs]:
    """Return a finding for every write to what the caller or the file owns, whether the first call drew random numbers,
    and its outputs."""
    copies = tuple(t.clone(memory_format=torch.contiguous_format) for t in inputs)
    before = {label: fingerprint_tensor(value) for label, value in _collect_owned_tensors(source, copies).items()}
    states = read_generator_states()
    outputs = run_eager(source, copies, as_they_are=True)
    draws_numbers = read_generator_states() != states
    if isinstance(outputs, str) or isinstance(run_eager(source, copies, as_they_are=True), str):
        return [], draws_numbers, outputs
    after = {label: fingerprint_tensor(value) for label, value in _collect_owned_tensors(source, copies).items()}
    touched = [label for label in dict.fromkeys([*before, *after]) if before.get(label) != after.get(label)]
    where, evidence = find_forward_line(source), "it has another value, or was written in place, after a call"
    findings = [make_refusal(WRITES, f"the model writes to {n}", where, evidence, _MEND_WRITES) for n in touched]
    return findings, draws_numbers, outputs


def _find_writing_line(source: Source, inputs: Inputs, label: str) -> str:
    """Return the line at which the model writes to this label: in its first call, or in a later one."""
    copies = tuple(t.clone() for t in inputs)

    def read_content() -> Any:
        value = _collect_owned_tensors(source, copies).get(label)
        return value is not None and fingerprint_tensor(value)

    return find_culprit_line(lambda: [run_eager(source, copies, as_they_are=True) for _ in range(2)], read_content)


def _collect_owned_tensors(source: Source, tensors: Inputs) -> dict[str, torch.Tensor]:
    entries = [("input", s.name, t) for s, t in zip(source.inputs, tensors, strict=True)]
    entries += [("parameter", *p) for p in source.parameter_module.named_parameters()]
    entries += [("buffer", *b) for b in source.parameter_module.named_buffers()]
    return {f"{role} {name!r}": value for role, name, value in entries}


def _check_later_calls(
    source: Source, draws: Sequence[Inputs], first_outputs: Sequence[Any], code_numbers: Sequence[float]
) -> list[Finding]:
    """Compare outputs of later calls with those of first calls; where they agree, check what changes meanwhile."""
    # Gradients that this call leaves are cleared.
    with eager_context(source), Footprint() as footprint:
        outputs = run_eager(source, draws[0])
    if mismatch := describe_difference(outputs, first_outputs[0]):
        return [_make_finding(source, "a call gives other outputs than it gives as the first call", mismatch)]
    order = [0, *range(len(draws)), *reversed(range(len(draws))), 0]
    for i in order:
        mismatch = describe_difference(run_eager(source, draws[i]), first_outputs[i])
        if mismatch:
            return [_make_finding(source, "a call gives other outputs than it gives as the first call", mismatch)]
    # A solver writes the next state where the last one was.
    memory = tuple(t.clone() for t in draws[0])
    run_eager(source, memory, as_they_are=True)
    for target, new in zip(memory, draws[1], strict=True):
        if target.shape == new.shape:
            target.copy_(new)
    later = run_eager(source, memory, as_they_are=True)
    mismatch = describe_difference(later, first_outputs[1])
    if mismatch and all(t.shape == new.shape for t, new in zip(memory, draws[1], strict=True)):
        return [_make_finding(source, "overwritten inputs give the old outputs", mismatch)]
    start, count = time.perf_counter(), 0
    while count < REPEATS and (time.perf_counter() - start < SECONDS or count < 3):
        count += 1
        if not outputs_equal(run_eager(source, draws[0]), first_outputs[0]):
            evidence = f"after {count + 1 + len(order)} calls"
            return [_make_finding(source, "equal calls give different outputs", evidence)]
    return _check_counters(source, draws, footprint, code_numbers)


def _check_counters(
    source: Source, draws: Sequence[Inputs], footprint: Footprint, code_numbers: Sequence[float]
) -> list[Finding]:
    """Set state that changes from call to call to other values, and compare outputs."""
    states: list[Mapping[str, Leaf]] = []
    for inputs in (draws[0], draws[0], draws[1], draws[-1], draws[0]):
        reference = run_eager(source, inputs)
        states.append(footprint.read_state(source.parameter_module))
    labels = dict.fromkeys(label for state in states for label in state)
    fingerprints = {n: {s[n].fingerprint if n in s else "" for s in states[:-1]} for n in labels}
    changing = [label for label, distinct in fingerprints.items() if len(distinct) > 1]
    harmless = []
    for label in changing:
        leaf = states[-1].get(label)
        if leaf is None or (put := leaf.put) is None:
            continue
        others = make_other_values(leaf.value)
        if isinstance(leaf.value, int) and not isinstance(leaf.value, bool) and len(harmless) < MAX_COUNTERS:
            others += _list_counts(code_numbers)
        for value in others:
            with contextlib.suppress(IndexError, KeyError, AttributeError):
                # The container may have changed meanwhile.
                put(value)
            outputs = run_eager(source, draws[0])
            if not outputs_equal(outputs, reference):
                where = _find_writer_line(source, draws[0], footprint, label)
                what = f"{label} changes from call to call, and outputs depend on it"
                evidence = f"with {str(value)[:40]!r} in it: {describe_difference(outputs, reference)}"
                return [_make_finding(source, what, evidence, where)]
        harmless.append(label)
    if not harmless:
        return []
    where = _find_writer_line(source, draws[0], footprint, harmless[0])
    text = f"changes from call to call: {', '.join(harmless[:5])}"
    return [Finding(CHECK, text, where, reason="no output depends on it; the file does not keep it")]


def _list_counts(numbers: Sequence[float]) -> list[int]:
    """List counts that the code may compare a count with: its own numbers, and those before them."""
    whole = (int(n) for n in numbers if n == int(n) and n > 1)
    return list(dict.fromkeys(n - shift for n in itertools.islice(whole, MAX_COUNTS) for shift in (0, 1)))


def _find_writer_line(source: Source, inputs: Inputs, footprint: Footprint, label: str) -> str:
    module = source.parameter_module
    read = footprint.read_fingerprints
    return find_culprit_line(lambda: run_eager(source, inputs), lambda: read(module).get(label, ""))


def _make_finding(source: Source, what: str, evidence: str, where: str = "") -> Finding:
    return make_refusal(CHECK, what, where or find_forward_line(source), evidence, _MEND)

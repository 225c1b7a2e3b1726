"""Runs in which Python is given other values than it read from data, and what they change."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from exporter.capture.data_dependence import SIZE
from exporter.capture.value_reads import Change, ValueRead
from exporter.common.script_loading import iterate_nodes
from exporter.common.tensors import bitwise_equal
from exporter.model.source import Inputs, Source
from exporter.soundness.check_context import outputs_equal
from exporter.soundness.run_recording import RunRecording, canonicalize, find_difference, record_run

# A loop that was given another bound may not end.
MAX_SECONDS = 2.0
RAISES, OTHER_OPERATIONS = "the model raises", "outputs are computed by other operations"
# Runs in which several decisions are turned round, and how many of them in one.
MAX_RUNS, MAX_DEPTH = 24, 3
# Further runs of one check: about as many operations, but so many runs at least and at most.
OPERATIONS, LEAST_FURTHER_RUNS, MOST_FURTHER_RUNS = 60_000, 40, 600


def depends_on_data(labels: frozenset[str]) -> bool:
    """Return whether these are labels of data, and not of sizes of inputs alone."""
    return any(not label.startswith(SIZE) for label in labels)


def list_data_reads(run: RunRecording) -> list[tuple[int, ValueRead]]:
    """List the reads of data, each with its position among all reads."""
    reads = zip(run.reads, run.origins, strict=True)
    return [(i, read) for i, (read, labels) in enumerate(reads) if depends_on_data(labels)]


class FurtherRuns:
    """The runs that a check may spend on more than the values next to those that were read: fewer of a large model, of
    which ``recording`` is one run. ``has_refused``: whether one was asked for that is not allowed."""

    def __init__(self, recording: RunRecording) -> None:
        operations = sum(1 for _ in iterate_nodes(recording.graph))
        self._left = max(LEAST_FURTHER_RUNS, min(MOST_FURTHER_RUNS, OPERATIONS // max(1, operations)))
        self.has_refused = False

    def take(self) -> bool:
        """Return whether one more run is allowed, and count it."""
        self._left -= 1
        self.has_refused = self._left < 0
        return not self.has_refused


class ForcedReads:
    """Runs at ``inputs``, of which ``base`` is the recording, with other values in place of what was read; several
    answers are turned round together as often as there are ``further_runs``."""

    def __init__(self, source: Source, inputs: Inputs, base: RunRecording, further_runs: FurtherRuns) -> None:
        self.source, self.inputs, self.base, self.further_runs = source, inputs, base, further_runs

    @cached_property
    def _operations(self) -> Any:
        return canonicalize(self.base)

    def describe_variant(self, position: int, change: Change) -> str:
        """Describe what another value of one read changes; empty where nothing does."""
        shown: list[str] = []

        def replace(value: Any) -> Any:
            replacement = change(value)
            text = str(replacement).replace("\n", " ")
            shown.append(text if len(text) < 30 else text[:27] + "...")
            return replacement

        run = self._run({position: replace})
        read = self.base.reads[position]
        instead = f"{read.value or 'data'} was read; with {shown[0] if shown else 'another value'} in its place"
        return self._describe(run, instead)

    def describe_branches(self, position: int) -> str:
        """Describe what changes when a decision and others after it are turned round together, as in
        ``if a.any() and not b.any()``; empty where nothing does."""
        pending = [(position,)] if _is_decision(self.base, position) else []
        for _ in range(MAX_RUNS):
            if not pending or not self.further_runs.take():
                break
            turned = pending.pop(0)
            run = self._run(dict.fromkeys(turned, _turn_round))
            lines = ", ".join(dict.fromkeys(run.reads[i].where for i in turned if i < len(run.reads)))
            if effect := self._describe(run, f"with the other answer at {lines}"):
                return effect
            if len(turned) < MAX_DEPTH and run.graph is not None:
                later = range(turned[-1] + 1, len(run.reads))
                pending += [(*turned, i) for i in later if _is_decision(run, i)]
        return ""

    def _run(self, changes: Mapping[int, Change]) -> RunRecording:
        return record_run(self.source, self.inputs, changes, MAX_SECONDS)

    def _describe(self, run: RunRecording, instead: str) -> str:
        base = self.base
        if run.failure:
            return f"{instead} {RAISES} {run.failure}"
        if not outputs_equal(run.outputs, base.outputs):
            old, new = base.outputs, run.outputs
            changed = [n for n in old if n not in new or not bitwise_equal(old[n], new[n])]
            return f"{instead} {', '.join(f'output {n!r}' for n in changed) or 'the order of outputs'} changes"
        if base.graph is None or run.graph is None:
            return ""
        difference = find_difference(self._operations, canonicalize(run))
        return f"{instead} {OTHER_OPERATIONS} ({difference[1]})" if difference else ""


def _turn_round(value: Any) -> Any:
    return not value if isinstance(value, bool) else value


def _is_decision(run: RunRecording, position: int) -> bool:
    """Return whether this is a read of a truth value from data."""
    return run.reads[position].value in ("True", "False") and depends_on_data(run.origins[position])

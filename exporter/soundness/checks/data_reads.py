"""Check of data that Python reads: ``bool()``, ``.item()``, ``.tolist()``, ``numpy()`` and the like.

A read is judged by its effect. A value that depends on an input (or on random numbers) is replaced by another one:
where an output changes, or the run fails, a trace would have frozen what the model computes. A read of parameters,
buffers or constants is sound, and so is one that only reaches a log. A branch is sound, too, where inputs that go
either way are known and the run that is captured serves all of them (``if mask.any(): x[mask] = ...``, captured with
some of the mask set)."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from typing import Any

import torch

from exporter.archive.contract import Finding
from exporter.capture.data_dependence import COUNT, SIZE
from exporter.capture.scripting import explain_not_compilable
from exporter.common.forking import ForkFailedError
from exporter.common.torch_internals import create_function, optimized_execution
from exporter.model.source import Inputs, Source
from exporter.soundness.check_context import (
    EagerContext,
    Outputs,
    describe_mismatch,
    find_submodules_at_line,
    make_refusal,
    run_eager,
)
from exporter.soundness.code_numbers import list_values_between
from exporter.soundness.forced_reads import OTHER_OPERATIONS, RAISES, ForcedReads, FurtherRuns, list_data_reads
from exporter.soundness.run_recording import RunRecording, fingerprint_tensor, record_run

CHECK = "data read"
_MEND = "keep it a tensor: torch.where instead of a branch, indexing by tensors, a fixed number of iterations"
BOTH_WAYS = "the captured run computes inputs of either branch correctly"
# Of a model with more lines that read data only the first ones are checked: it is refused at those.
LINES = 60
# Of the reads at one line, which may be those of a whole library that it calls, so many are given other values.
READS = 8
# Reads of pieces: where there are none, none can be made up.
PIECES = ("iteration", "unbind()", "split()", "chunk()", "tensor_split()")
# A line, and how it reads.
ReadLine = tuple[str, str]


def check(context: EagerContext) -> list[Finding]:
    """Check the effect of every read of data into Python."""
    return context.room(_check, [inputs for _, inputs in context.draws], context.code_numbers)


class _Recordings:
    """Recordings of the draws, each made once. Graphs are kept of the first two alone, as those of large models are."""

    def __init__(self, source: Source, draws: Sequence[Inputs], code_numbers: Sequence[float]) -> None:
        self.source, self.draws, self.code_numbers = source, draws, code_numbers
        self._made: dict[int, RunRecording] = {}

    def record(self, index: int) -> RunRecording:
        """Return the recording of this draw."""
        if index not in self._made:
            recording = record_run(self.source, self.draws[index])
            self._made[index] = recording if index < 2 else dataclasses.replace(recording, graph=None)
        return self._made[index]

    @functools.cached_property
    def further_runs(self) -> FurtherRuns:
        """Return the runs that all lines share."""
        return FurtherRuns(self.record(0))

    def list_values(self, index: int, line: ReadLine) -> tuple[str, ...]:
        """Return what this line reads at a draw."""
        return tuple(read.value for read in self.record(index).reads if (read.where, read.kind) == line)


def _check(source: Source, draws: Sequence[Inputs], code_numbers: Sequence[float]) -> list[Finding]:
    recordings = _Recordings(source, draws, code_numbers)
    # Without values all recordings are alike.
    bases = [recordings.record(i) for i in range(1 if source.uses_autograd else 2)]
    if failures := [base.failure for base in bases if base.graph is None]:
        raise ForkFailedError(failures[0])
    lines: dict[ReadLine, frozenset[str]] = {}
    for base in bases:
        for read, origin in zip(base.reads, base.origins, strict=True):
            key = (read.where, read.kind)
            lines[key] = lines.get(key, frozenset()) | origin
    findings: list[Finding] = []
    for line, labels in list(lines.items())[:LINES]:
        origin = [label for label in sorted(labels) if not label.startswith(SIZE)]
        # A size that data decide is sound where it is the same at all data; nothing, and an answer, say less.
        is_same = _is_count(labels) and _reads_the_same(recordings, line)
        is_empty = is_same and _is_empty(recordings, line)
        if not origin or (is_same and not is_empty and line[1] != "bool()"):
            continue
        finding = _judge_line(recordings, bases, line, origin)
        # Where another answer raises, the model itself says that there is none.
        if not is_same or is_empty or (finding.severity == "unsound" and RAISES not in finding.evidence):
            findings.append(finding)
    if recordings.further_runs.has_refused:
        what = "not all reads of data were tried with the numbers of the code, and together with others"
        findings.append(Finding(CHECK, what, reason="the model reads more data than a check may try"))
    return findings


def _judge_line(
    recordings: _Recordings, bases: Sequence[RunRecording], line: ReadLine, origin: Sequence[str]
) -> Finding:
    """Return what the value that a line reads from data does to the outputs."""
    source, draws, (where, operation) = recordings.source, recordings.draws, line
    distinguishing = [i for i in _find_distinguishing_draws(recordings, line) if i > 1]
    others = [(draws[i], recordings.record(i)) for i in distinguishing]
    effect = _describe_effect(recordings, [*zip(draws[:2], bases, strict=False), *others], where, operation)
    what = f"{operation} reads data into Python that depend on {', '.join(origin)}"
    if not effect and operation in PIECES and _is_empty(recordings, line):
        effect = "nothing is selected at any of the draws, and none shows what is done with what is"
    if not effect:
        return Finding(CHECK, what, where, reason="no output depends on what was read")
    if operation == "bool()" and distinguishing and _serves_all(source, bases[0], draws):
        return Finding(CHECK, what, where, reason=BOTH_WAYS)
    examples = "; or give examples that take the branch (--inputs)" if OTHER_OPERATIONS in effect else ""
    return make_refusal(CHECK, what, where, effect, _MEND + _suggest_script(source, where) + examples)


def _suggest_script(source: Source, where: str) -> str:
    """Return how to compile the submodule that a line is in, or why that fails; nothing for one of the model itself."""
    inside = [path for path in find_submodules_at_line(source, where) if path]
    if not inside:
        return ""
    if reason := explain_not_compilable(source.parameter_module.get_submodule(inside[-1])):
        return f"; TorchScript cannot compile submodule {inside[-1]!r} as it is: {reason}"
    return f', or torchferry.mark(..., jit="script") for submodule {inside[-1]!r}'


def _find_distinguishing_draws(recordings: _Recordings, line: ReadLine) -> list[int]:
    """Return the draws at which this line reads another value than at the draws before.

    There are none where data decide how often the line runs."""
    first_draws: dict[tuple[str, ...], int] = {}
    for i in range(len(recordings.draws)):
        if not recordings.record(i).failure:
            first_draws.setdefault(recordings.list_values(i, line), i)
    counts = set(map(len, first_draws))
    return list(first_draws.values())[:4] if len(first_draws) > 1 and len(counts) == 1 else []


def _serves_all(source: Source, base: RunRecording, draws: Sequence[Inputs]) -> bool:
    """Return whether the run that would be captured gives eager mode's outputs at every draw, none of which writes to a
    parameter or a buffer: the run would see that, too."""
    replay = create_function("forward", base.graph)
    tensors = [*source.parameter_module.parameters(), *source.parameter_module.buffers()]
    before = [*map(fingerprint_tensor, tensors)]
    is_served = all(_agrees(replay, inputs, run_eager(source, inputs)) for inputs in draws)
    return is_served and before == [*map(fingerprint_tensor, tensors)]


def _agrees(replay: Any, inputs: Inputs, expected: Outputs) -> bool:
    try:
        with optimized_execution(False):
            got = replay(*(t.clone() for t in inputs))
    except Exception:
        # A replay must refuse what the model refuses.
        return isinstance(expected, str)
    pairs = zip(got, () if isinstance(expected, str) else expected.values(), strict=False)
    return not isinstance(expected, str) and all(not describe_mismatch(a, b) for a, b in pairs)


def _is_count(labels: frozenset[str]) -> bool:
    """Return whether only sizes that data decide were read, beside sizes of the inputs."""
    rest = [label for label in labels if not label.startswith(SIZE)]
    return bool(rest) and all(label.startswith(COUNT) for label in rest)


def _reads_the_same(recordings: _Recordings, line: ReadLine) -> bool:
    """Return whether this line reads the same values at all data."""
    return len({recordings.list_values(i, line) for i in range(len(recordings.draws))}) == 1


def _is_empty(recordings: _Recordings, line: ReadLine) -> bool:
    """Return whether this line reads that there is nothing, each time at all data."""
    return {*itertools.chain(*(recordings.list_values(i, line) for i in range(len(recordings.draws))))} == {"0"}


def _describe_effect(
    recordings: _Recordings, bases: Sequence[tuple[Inputs, RunRecording]], where: str, operation: str
) -> str:
    """Describe what changes when Python is given another value; empty where nothing does.

    The operations that outputs are computed by count as well: those of a branch that no draw takes may change nothing
    at these data (``if mask.any(): x[mask] = 0``)."""
    for inputs, base in bases:
        trials = ForcedReads(recordings.source, inputs, base, recordings.further_runs)
        positions = [i for i, read in list_data_reads(base) if (read.where, read.kind) == (where, operation)]
        for position in _spread(positions, READS):
            for index in range(VARIANTS):
                if effect := trials.describe_variant(position, lambda value, k=index: pick_variant(value, k)):
                    return effect
        # What more is tried is the same at other draws.
        for position in positions[:1] if base is bases[0][1] else ():
            if effect := trials.describe_branches(position) or _describe_numbers(recordings, trials, position):
                return effect
    return ""


def _describe_numbers(recordings: _Recordings, trials: ForcedReads, position: int) -> str:
    """Describe what changes when a number that was read is one of those that it may be compared with."""
    try:
        read_number = float(trials.base.reads[position].value)
    except ValueError:
        return ""
    for number in list_values_between(recordings.code_numbers, read_number, MOST_NUMBERS):
        if not recordings.further_runs.take():
            return ""
        if effect := trials.describe_variant(position, lambda value, number=number: type(value)(number)):
            return effect
    return ""


def _spread(positions: Sequence[int], most: int) -> list[int]:
    """Return at most so many, the first and the last among them."""
    if len(positions) <= most:
        return list(positions)
    return [positions[round(k * (len(positions) - 1) / (most - 1))] for k in range(most)]


VARIANTS = 6
# Numbers of the code that a number is replaced by.
MOST_NUMBERS = 40


def pick_variant(value: Any, index: int) -> Any:
    """Return one of the other values of the same type."""
    variants = make_variants(value)
    return variants[index % len(variants)]


def make_variants(value: Any) -> list[Any]:
    """Return other values of the same type, enough to distinguish what a program may do with a value."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return list(dict.fromkeys([value + 1, value - 1, 0, 2 * value + 3]))
    if isinstance(value, float):
        return [value + 1.0, -value, 0.5 * value, 1e30, -1e30, float("nan")]
    if isinstance(value, complex):
        return [value + 1.0, -value]
    if isinstance(value, str):
        return ["another text"]
    if isinstance(value, (list, tuple)):
        return [type(value)(make_variants(v)[0] if v is not None else v for v in value), type(value)(reversed(value))]
    if isinstance(value, torch.Tensor):
        return [~value] if value.dtype == torch.bool else [value + 1, -value]
    if hasattr(value, "__array__") and hasattr(value, "dtype"):
        return [~value] if value.dtype.kind == "b" else [value + value.dtype.type(1), -value]
    return [value]

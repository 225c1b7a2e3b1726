"""Check of batch sizes that Python reads, and of batches that were not traced.

A size that Python reads is sound where the capture agrees with eager mode on every side of it. The model itself tells
which sizes those are: sizes at which the reads give other values, and the neighbours of every literal that a size is
compared with."""

from __future__ import annotations

import importlib.util
import itertools
import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from exporter.archive.contract import Finding
from exporter.capture.data_dependence import COUNT, SIZE
from exporter.capture.symbolic_guards import SIZE_COMPARISON
from exporter.common.errors import CaptureError, WarmupError
from exporter.model.eager.dynamic_sizes import MAX_NUMBERS, count_numbers, format_sizes
from exporter.model.eager.evaluation import eager_context, evaluate_on_copies, find_forward_line
from exporter.model.implicit.newton_solver import find_solvers
from exporter.model.source import Inputs, Source
from exporter.soundness.check_context import (
    CaptureContext,
    find_disagreement,
    locate_divergence,
    make_refusal,
)
from exporter.soundness.footprint import get_class_file, is_user_file
from exporter.soundness.forced_reads import ForcedReads, FurtherRuns, list_data_reads
from exporter.soundness.run_recording import RunRecording, record_run

CHECK = "batch size"
_MEND = (
    "let torch work with the size: x.new_zeros(x.shape[0], 3), x.reshape(x.shape[0], -1); "
    "torch.where instead of a branch"
)
SMALL = (1, 2, 0, 3, 4, 8)
SIZES = (*SMALL, 16, 33, 64, 100, 128, 255, 256, 1000, 1024, 2048, 4096, 5000)
# Sizes that are tried since the code has such a number.
MAX_CODE_SIZES = 12
# At most so many sizes are tried, or as many as the first run's literals ask for.
MAX_SIZES = 60 + 3 * MAX_CODE_SIZES
LARGE = (10_000, 100_000)
MAX_SOLVED_BATCH = 256
# If the user's code reads sizes, the check may cost so many times as much as another, for all sizes but the large ones.
READS_FACTOR = 20


@dataclass
class _Trials:
    """Comparisons of capture and eager mode at further sizes. ``agreed`` are the sizes at which both agree,
    ``left_out`` those that a check may not hold or compute the numbers of, ``spent`` what the others computed."""

    context: CaptureContext
    factor: int
    generator: torch.Generator
    agreed: list[int]
    left_out: list[int] = field(default_factory=list)
    spent: float = 0.0

    def compare(self, sizes: int | Mapping[str, int]) -> tuple[Inputs, str]:
        """Return inputs of these sizes, and where both disagree at them; no inputs if they could not be run."""
        warm, largest = self.context.warm, sizes if isinstance(sizes, int) else max(sizes.values())
        variables = (*warm.source.inputs, *warm.output_specs)
        is_too_wide = max(largest, count_numbers(warm.source, variables, warm.sampler, sizes)) > MAX_NUMBERS
        factor = 1 if largest in LARGE else self.factor
        is_too_dear = largest not in warm.traced_sizes and warm.cost.explain(largest, self.spent, factor=factor)
        if is_too_wide or is_too_dear:
            self.left_out.append(largest)
            return (), ""
        self.spent += warm.cost.estimate(largest)
        inputs = warm.sampler.draw(sizes, self.generator)
        try:
            expected = evaluate_on_copies(self.context.source, inputs)
        except WarmupError:
            # A size that eager mode refuses is a limit of the model, which warmup records.
            return (), ""
        except CaptureError as error:
            return inputs, f"eager mode gives other outputs: {error.details.get('got', error.what)}"
        mismatch = find_disagreement(self.context, inputs, expected=expected)
        self.agreed += [] if mismatch else [largest]
        return inputs, mismatch


def check(context: CaptureContext) -> list[Finding]:
    """Check that the capture agrees with eager mode at other batch sizes and dynamic sizes."""
    source, warm = context.source, context.warm
    if not source.has_dynamic_size or not source.inputs:
        return []
    with eager_context(source):
        traced = context.draws[0][1]
        base = record_run(source, traced)
        if find_disagreement(context, traced):
            # The cause is not a size: another check reports it.
            return []
        reads, literals = _find_size_reads(base), _find_literals(base)
        user_reads = _find_user_reads(source, reads)
        # A size may be looked up in a table, which no read shows.
        code_sizes = _list_code_sizes(context.code_numbers) if _has_user_module(source) else []
        factor = READS_FACTOR if user_reads else 1
        trials = _Trials(context, factor, torch.Generator().manual_seed(0), [warm.traced_sizes[0]])
        pending = _list_sizes(context, literals, code_sizes, is_user_read=bool(user_reads))
        seen, allowed = set(), max(0, MAX_SIZES - len(pending))
        further_runs = FurtherRuns(base)
        while pending:
            size = pending.pop(0)
            if size in seen:
                continue
            seen.add(size)
            inputs, mismatch = trials.compare(size)
            if mismatch:
                return [_make_finding(context, base, inputs, f"{source.size_name} {size}", mismatch)]
            if inputs and user_reads and size <= SIZES[-1]:
                # Another path through the code compares with other literals, and may read data.
                run, size_text = record_run(source, inputs), f"{source.size_name} {size}"
                if finding := _judge_new_reads(base, ForcedReads(source, inputs, run, further_runs), size_text):
                    return [finding]
                new_literals = [n for n in _find_literals(run) if n not in literals]
                literals += new_literals
                neighbours = _list_neighbours(new_literals)[:allowed]
                allowed -= len(neighbours)
                pending[:0] = neighbours
        for sizes in _list_size_combinations(context, literals):
            inputs, mismatch = trials.compare(sizes)
            if mismatch:
                return [_make_finding(context, base, inputs, format_sizes(sizes), mismatch)]
        return _make_notes(list(reads), user_reads, literals, trials)


def _list_sizes(
    context: CaptureContext, literals: Sequence[int], code_sizes: Sequence[int], *, is_user_read: bool
) -> list[int]:
    """List the sizes to try. Where the user's code reads sizes, it may compare them with literals of the graph or the
    code: those come before large ones."""
    neighbours, code_neighbours = _list_neighbours(literals), _list_neighbours(code_sizes)
    preferred = [*neighbours, *code_neighbours] if is_user_read else []
    sizes = dict.fromkeys(
        [context.warm.traced_sizes[1], *SMALL, *preferred, *SIZES, *neighbours, *code_neighbours, *LARGE]
    )
    # Where each element takes iterations, large batches are left to the residual, which is checked by itself.
    solved_size = SIZES[-1] if is_user_read else MAX_SOLVED_BATCH
    max_size = solved_size if find_solvers(context.source.parameter_module) else math.inf
    return [n for n in sizes if n <= max_size and (n or 0 in context.warm.batch.sizes)]


def _make_notes(
    reads: Sequence[tuple[str, str]], user_reads: Sequence[str], literals: Sequence[int], trials: _Trials
) -> list[Finding]:
    """Make the notes of a model that agrees at every size that was run: its reads of sizes, and what was not run."""
    notes: list[Finding] = []
    largest = max(trials.agreed)
    if left_out := [n for n in SIZES if n in trials.left_out]:
        reason = f"a check may not hold or compute so many numbers; the largest size that was run is {largest}"
        notes.append(Finding(CHECK, f"sizes {', '.join(map(str, left_out))} were not run", reason=reason))
    not_run = [n for n in literals if n not in trials.agreed]
    if not_run and user_reads:
        what, reason = f"a size is compared with {not_run[0]}", "no batch of that size was run"
        notes.append(Finding(CHECK, what, user_reads[0], reason=reason))
    reason = f"capture and eager mode agree at every size that was run, to {largest}"
    return notes + [Finding(CHECK, f"{operation} reads a size", where, reason=reason) for where, operation in reads]


def _list_size_combinations(context: CaptureContext, literals: Sequence[int]) -> list[dict[str, int]]:
    """Return other combinations of the dynamic sizes, and each size but the first at the neighbours of the literals."""
    sampler, size = context.warm.sampler, context.warm.traced_sizes[0]
    base, neighbours = sampler.resolve_sizes(size), _list_neighbours(literals)[:MAX_SIZES]
    combinations = [*sampler.arrange_sizes(size), *({**base, name: n} for name in list(base)[1:] for n in neighbours)]
    # A size of 0 that warmup left out may end the process.
    runs_empty = 0 in context.warm.batch.sizes
    return [sizes for sizes in combinations if runs_empty or 0 not in sizes.values()]


def _find_size_reads(base: RunRecording) -> dict[tuple[str, str], None]:
    """Return the lines that read sizes of inputs and nothing else."""
    reads = zip(base.reads, base.origins, strict=True)
    sized = [read for read, labels in reads if labels and all(label.startswith((SIZE, COUNT)) for label in labels)]
    return {(read.where, read.kind): None for read in sized}


def _find_literals(base: RunRecording) -> list[int]:
    """Return the whole numbers in the run: a threshold for a size is one of them."""
    if base.graph is None:
        return []
    texts = re.findall(r"(?:value=\{?|\[value=\{?)(-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)", base.graph.str())
    compared_values = [read.value for read in base.reads if read.kind == SIZE_COMPARISON]
    texts += [text for value in compared_values for text in re.findall(r"(?<![\w.])\d+", value)]
    numbers = {int(float(text)) for text in texts if abs(float(text)) < 1e9}
    return sorted(n for n in numbers if n > 2)


def _judge_new_reads(base: RunRecording, trials: ForcedReads, size_text: str) -> Finding | None:
    """Return a finding for data that Python reads at this size only, where another answer has an effect."""
    known = {(read.where, read.kind) for _, read in list_data_reads(base)}
    for position, read in list_data_reads(trials.base):
        if (read.where, read.kind) not in known and (effect := trials.describe_branches(position)):
            what = f"{read.kind} reads data into Python at some sizes"
            return make_refusal(CHECK, what, read.where, f"at {size_text}: {effect}", _MEND)
    return None


def _list_code_sizes(code_numbers: Sequence[float]) -> list[int]:
    """List sizes that the user's code may compare with in Python, where the graph does not have them."""
    sizes = (int(n) for n in code_numbers if n == int(n) and 2 < n <= SIZES[-1])
    return [*itertools.islice(sizes, MAX_CODE_SIZES)]


def _find_user_reads(source: Source, reads: Iterable[tuple[str, str]]) -> list[str]:
    """Return the lines of the reads that the user's code may decide by.

    The source library's own code has no thresholds for sizes; a module of the user's may ask for a size through it."""
    has_user_module = _has_user_module(source)
    return [where for where, _ in reads if has_user_module or _is_users(source, where)]


def _has_user_module(source: Source) -> bool:
    return any(_is_users(source, get_class_file(type(m))) for m in source.parameter_module.modules())


def _is_users(source: Source, path: str) -> bool:
    library = source.origin.library
    spec = importlib.util.find_spec(library) if library in sys.modules else None
    folders = (spec and spec.submodule_search_locations) or ()
    return is_user_file(path) and not any(Path(path).is_relative_to(folder) for folder in folders)


def _list_neighbours(literals: Iterable[int]) -> list[int]:
    return [n + shift for n in literals for shift in (0, 1, -1)]


def _make_finding(
    context: CaptureContext, base: RunRecording, inputs: Inputs, size_text: str, mismatch: str
) -> Finding:
    source, first = context.source, context.warm.traced_sizes[0]
    size_type, size_name = "batch" if source.batch_ndim else "open", source.size_name
    other_run = record_run(source, inputs)
    where, cause = "", ""
    for a, b in zip(base.reads, other_run.reads, strict=False):
        if a != b:
            where, cause = a.where, f"{a.kind} gave {a.value} at {size_name} {first} and {b.value} at {size_text}"
            break
    what = f"the {size_type} size is read into Python, and a trace would keep the value that it saw"
    if not where:
        divergence = locate_divergence(source, context.draws[0][1], inputs)
        where, cause = divergence.where, divergence.what
        if source.uses_autograd:
            writer = "one of torch's own formulas or transforms writes it"
            what = f"the capture keeps the {size_type} size that it saw: {writer}"
    evidence = "; ".join(filter(None, (cause, f"at {size_text}: {mismatch}")))
    # Nobody has said that it has a batch.
    mend = f"{_MEND}; or --batch no, for the shapes of the examples alone" if source.whole_call else _MEND
    return make_refusal(CHECK, what, where or find_forward_line(source), evidence, mend)

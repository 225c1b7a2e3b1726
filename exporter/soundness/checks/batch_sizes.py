"""Check of batch sizes that Python reads, and of batches that were not traced.

A size that Python reads is sound where the capture agrees with eager mode on every side of it. The model itself tells
which sizes those are: sizes at which the reads give other values, and the neighbours of every literal that a size is
compared with."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence

import torch

from exporter.archive.contract import Finding
from exporter.capture.symbolic_guards import SIZE_COMPARISON
from exporter.common.forking import run_in_fork
from exporter.model.eager.call_cost import CallCost
from exporter.model.eager.dynamic_sizes import MAX_NUMBERS, count_numbers, format_sizes
from exporter.model.eager.evaluation import eager_context, find_forward_line
from exporter.model.implicit.newton_solver import find_solvers
from exporter.model.source import Inputs
from exporter.soundness.check_context import (
    CaptureContext,
    find_disagreement,
    locate_divergence,
    make_refusal,
    run_eager,
)
from exporter.soundness.data_dependence import COUNT, SIZE
from exporter.soundness.run_recording import RunRecording, record_run

CHECK = "batch size"
_MEND = (
    "let torch work with the size: x.new_zeros(x.shape[0], 3), x.reshape(x.shape[0], -1); "
    "torch.where instead of a branch"
)
SMALL = (1, 2, 0, 3, 4, 8)
SIZES = (*SMALL, 16, 33, 64, 100, 128, 255, 256, 1000, 1024, 2048, 4096, 5000)
# At most so many sizes are tried because of literals in the code.
MAX_LITERAL_SIZES = 60
LARGE = (10_000, 100_000)
MAX_SOLVED_BATCH = 256
# A model whose sizes Python reads is run at sizes that cost so many times more than another check may.
SHARE_OF_READS = 10
# A model that took longer than this at one of the other sizes is not run at the large ones.
SECONDS = 0.05


def check(context: CaptureContext) -> list[Finding]:
    """Check that the capture agrees with eager mode at other batch sizes and dynamic sizes."""
    if not context.source.has_dynamic_size or not context.source.inputs:
        return []
    return run_in_fork(_check, context)


def _check(context: CaptureContext) -> list[Finding]:
    source = context.source
    generator = torch.Generator().manual_seed(0)
    with eager_context(source):
        traced = context.draws[0][1]
        base = record_run(source, traced)
        if find_disagreement(context, traced):
            # The cause is not a size: another check reports it.
            return []
        reads = _find_size_reads(base)
        tried, left_out, literals = set(), [], _find_literals(base)
        # A size that Python reads may be compared with a literal: those come first where not all can be afforded.
        first = [context.warm.traced_sizes[1], *SMALL, *(_list_neighbours(literals) if reads else ())]
        candidates = dict.fromkeys([*first, *SIZES, *_list_neighbours(literals), *LARGE])
        # Where each element takes iterations, large batches are left to the residual, which is checked by itself.
        solved_size = SIZES[-1] if reads else MAX_SOLVED_BATCH
        max_size = solved_size if find_solvers(source.parameter_module) else MAX_NUMBERS
        pending = [n for n in candidates if n <= max_size]
        is_fast, total = True, 0
        cost = context.warm.cost.extend(SHARE_OF_READS) if reads else context.warm.cost
        for size in pending:
            if size in tried or (size in LARGE and not is_fast) or (size == 0 and 0 not in context.warm.batch.sizes):
                continue
            if _is_too_large(context, size, cost, total):
                left_out += [size] * (size in SIZES)
                continue
            start = time.perf_counter()
            tried.add(size)
            total += size
            inputs = context.warm.sampler.draw(size, generator)
            if isinstance(run_eager(source, inputs), str):
                # A size that eager mode refuses is a limit of the model, which warmup records.
                continue
            mismatch = find_disagreement(context, inputs)
            if mismatch:
                return [_make_finding(context, base, inputs, f"{context.source.size_name} {size}", mismatch)]
            if reads and size <= SIZES[-1]:
                # Another path through the code compares with other literals.
                new_literals = [n for n in _find_literals(record_run(source, inputs)) if n not in literals]
                literals += new_literals
                neighbours = [n for n in _list_neighbours(new_literals) if n <= max_size]
                pending += neighbours[: max(0, MAX_LITERAL_SIZES - len(pending))]
            is_fast = is_fast and time.perf_counter() - start < SECONDS
        for sizes in _list_size_combinations(context, literals):
            if _is_too_large(context, sizes, cost, total):
                continue
            total += max(sizes.values())
            inputs = context.warm.sampler.draw(sizes, generator)
            mismatch = "" if isinstance(run_eager(source, inputs), str) else find_disagreement(context, inputs)
            if mismatch:
                return [_make_finding(context, base, inputs, format_sizes(sizes), mismatch)]
        return _make_notes(list(reads), [n for n in literals if n not in tried], left_out, max(tried))


def _make_notes(
    reads: Sequence[tuple[str, str]], not_tried: Sequence[int], left_out: Sequence[int], largest: int
) -> list[Finding]:
    """Make the notes of a model that agrees at every size that was run: its reads of sizes, and what was not run."""
    notes: list[Finding] = []
    if left_out:
        reason = f"a check may not cost so much; the largest size that was run is {largest}"
        notes.append(Finding(CHECK, f"sizes {', '.join(map(str, left_out))} were not run", reason=reason))
    if not_tried and reads:
        what, reason = f"a size is compared with {not_tried[0]}", "no batch of that size was run"
        notes.append(Finding(CHECK, what, reads[0][0], reason=reason))
    reason = f"capture and eager mode agree at every size that was run, to {largest}"
    return notes + [Finding(CHECK, f"{operation} reads a size", where, reason=reason) for where, operation in reads]


def _list_size_combinations(context: CaptureContext, literals: Sequence[int]) -> list[dict[str, int]]:
    """Return other combinations of the dynamic sizes, and each size but the first at the neighbours of the literals."""
    sampler, size = context.warm.sampler, context.warm.traced_sizes[0]
    base, neighbours = sampler.resolve_sizes(size), _list_neighbours(literals)[:MAX_LITERAL_SIZES]
    combinations = [*sampler.arrange_sizes(size), *({**base, name: n} for name in list(base)[1:] for n in neighbours)]
    # A size of 0 that warmup left out may end the process.
    empty = 0 in context.warm.batch.sizes
    return [sizes for sizes in combinations if empty or 0 not in sizes.values()]


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


def _list_neighbours(literals: Iterable[int]) -> list[int]:
    return [n + shift for n in literals for shift in (0, 1, -1)]


def _is_too_large(context: CaptureContext, size: int | Mapping[str, int], cost: CallCost, total: int) -> bool:
    """Return whether a call at this size would hold too many numbers, or compute too many after ``total`` elements."""
    warm, batch_size = context.warm, size if isinstance(size, int) else max(size.values())
    count = count_numbers(warm.source, (*warm.source.inputs, *warm.output_specs), warm.sampler, size)
    return max(batch_size, count) > MAX_NUMBERS or not cost.is_affordable(batch_size, total)


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
        where, cause = locate_divergence(source, context.draws[0][1], inputs)
        if source.uses_autograd:
            writer = "one of torch's own formulas or transforms writes it"
            what = f"the capture keeps the {size_type} size that it saw: {writer}"
    evidence = "; ".join(filter(None, (cause, f"at {size_text}: {mismatch}")))
    return make_refusal(CHECK, what, where or find_forward_line(source), evidence, _MEND)

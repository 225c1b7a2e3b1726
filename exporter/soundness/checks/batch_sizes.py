"""Batch sizes that Python reads, and batches that were not traced.

A size that Python reads is sound where the capture agrees with eager mode on every side of it. Which sizes those are
is asked of the model: sizes at which the reads give other values, and the neighbours of every literal that a size is
compared with.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence

import torch

from exporter.archive.contract import Finding
from exporter.capture.symbolic_guards import COMPARED
from exporter.common.forking import isolated
from exporter.model.eager.dynamic_sizes import NUMBERS, numbers_at, text_of
from exporter.model.eager.evaluation import forward_line, inference_conditions
from exporter.model.implicit.newton_solver import loops
from exporter.model.source import Inputs
from exporter.soundness.check_context import Subject, disagreement, eager, where_runs_part
from exporter.soundness.data_dependence import COUNT, SIZE
from exporter.soundness.run_recording import Recording, record

CHECK = "batch size"
SIZES = (1, 2, 0, 3, 4, 8, 16, 33, 64, 100, 128, 255, 256, 1000, 1024, 2048, 4096, 5000)
# Sizes that literals of the code lead to, and no more.
LED_TO = 60
LARGE = (10_000, 100_000)
SOLVED = 256
# A model for which one of the other sizes took longer than this is not run at the large ones.
SECONDS = 0.05


def check(subject: Subject) -> list[Finding]:
    if not subject.source.varies or not subject.source.inputs:
        return []
    return isolated(_check, subject)


def _check(subject: Subject) -> list[Finding]:
    source = subject.source
    generator = torch.Generator().manual_seed(0)
    with inference_conditions(source):
        traced = subject.draws[0][1]
        base = record(source, traced)
        if disagreement(subject, traced):
            # Not for a size: another check says so.
            return []
        reads = _size_reads(base)
        tried, literals = set(), _literals(base)
        wanted = dict.fromkeys([subject.warm.traced_sizes[1], *SIZES, *_around(literals), *LARGE])
        # Where each element takes iterations, large batches are for the residual, which is judged on its own.
        most = NUMBERS if not loops(source.named) else SIZES[-1] if reads else SOLVED
        pending = [n for n in wanted if n <= most]
        notes: list[Finding] = []
        quick = True
        for size in pending:
            if (
                size in tried
                or (size == 0 and 0 not in subject.warm.batch.sizes)
                or _numbers(subject, size) > NUMBERS
                or (size in LARGE and not quick)
            ):
                continue
            start = time.perf_counter()
            tried.add(size)
            inputs = subject.warm.sampler.draw(size, generator)
            if isinstance(eager(source, inputs), str):
                # What eager mode refuses is a limit of the model, which warmup writes down.
                continue
            apart = disagreement(subject, inputs)
            if apart:
                return [_unsound(subject, base, inputs, f"{_lead(subject)} {size}", apart)]
            if reads and size <= SIZES[-1]:
                # Another way through the code compares with other literals.
                more = [n for n in _literals(record(source, inputs)) if n not in literals]
                literals += more
                pending += [n for n in _around(more) if n <= most][: max(0, LED_TO - len(pending))]
            quick = quick and time.perf_counter() - start < SECONDS
        for sizes in _arranged(subject, literals):
            inputs = subject.warm.sampler.draw(sizes, generator)
            apart = "" if isinstance(eager(source, inputs), str) else disagreement(subject, inputs)
            if apart:
                return [_unsound(subject, base, inputs, text_of(sizes), apart)]
        far = [n for n in literals if n > most or _numbers(subject, n) > NUMBERS]
        if far and reads:
            where = next(iter(reads))[0]
            notes.append(
                Finding(CHECK, f"a size is compared with {far[0]}", where, reason="larger than any batch that was run")
            )
        for where, kind in reads:
            notes.append(
                Finding(CHECK, f"{kind} reads a size", where, reason="capture and eager mode agree on every side of it")
            )
        return notes


def _lead(subject: Subject) -> str:
    return "batch" if subject.source.batch_ndim else subject.source.sizes[0]


def _arranged(subject: Subject, literals: Sequence[int]) -> list[dict[str, int]]:
    """Several open sizes in other orders, and each but the first at the literals that a size may be compared with."""
    warm = subject.warm
    size = warm.traced_sizes[0]
    base = warm.sampler.sizes(size)
    found = warm.sampler.arrangements(size)
    found += [{**base, name: n} for name in list(base)[1:] for n in _around(literals)[:LED_TO]]
    specs = (*warm.source.inputs, *warm.output_specs)
    # A size of 0 that warmup left out may end the process.
    empty = 0 in warm.batch.sizes
    return [
        sizes
        for sizes in found
        if (empty or 0 not in sizes.values()) and numbers_at(warm.source, specs, warm.sampler, sizes) <= NUMBERS
    ]


def _size_reads(base: Recording) -> dict[tuple[str, str], None]:
    """Lines that read sizes of inputs and nothing else."""
    return {
        (read.where, read.kind): None
        for read, labels in zip(base.reads, base.origins, strict=True)
        if labels and all(label.startswith((SIZE, COUNT)) for label in labels)
    }


def _literals(base: Recording) -> list[int]:
    """Whole numbers in the run: a threshold for a size is one of them."""
    if base.graph is None:
        return []
    found = re.findall(r"(?:value=\{?|\[value=\{?)(-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)", base.graph.str())
    asked = [read.value for read in base.reads if read.kind == COMPARED]
    found += [text for value in asked for text in re.findall(r"(?<![\w.])\d+", value)]
    numbers = {int(float(text)) for text in found if abs(float(text)) < 1e9}
    return sorted(n for n in numbers if n > 2)


def _around(literals: Iterable[int]) -> list[int]:
    return [n + shift for n in literals for shift in (0, 1, -1)]


def _numbers(subject: Subject, size: int) -> int:
    warm = subject.warm
    return max(size, numbers_at(warm.source, (*warm.source.inputs, *warm.output_specs), warm.sampler, size))


def _unsound(subject: Subject, base: Recording, inputs: Inputs, there: str, apart: str) -> Finding:
    source, first = subject.source, subject.warm.traced_sizes[0]
    kind, lead = "batch" if source.batch_ndim else "open", _lead(subject)
    other = record(source, inputs)
    where, what, mend = "", "", "let torch work with the size: x.new_zeros(x.shape[0], 3), x.reshape(x.shape[0], -1)"
    for a, b in zip(base.reads, other.reads, strict=False):
        if a != b:
            where, what = a.where, f"{a.kind} gave {a.value} at {lead} {first} and {b.value} at {there}"
            break
    asked = bool(where)
    if not where:
        where, what = where_runs_part(source, subject.draws[0][1], inputs)
    return Finding(
        CHECK,
        f"the {kind} size is read into Python, and a trace would keep the one it saw"
        if asked or not source.differentiates
        else f"the capture keeps the {kind} size that it saw: a formula or a transform of torch's own writes it",
        where or forward_line(source),
        severity="unsound",
        evidence="; ".join(filter(None, (what, f"at {there}: {apart}"))),
        mend=f"{mend}; torch.where instead of a branch",
    )

"""Draws on the other side of a comparison.

Where a run reads data into Python, inputs are made of the numbers that the read may be compared with: literals on its
line, numbers in the graph before it, attributes and parameters of the modules. One that takes a new way through the
user's code is kept, as coverage-guided fuzzers keep theirs (AFL: https://lcamtuf.coredump.cx/afl/technical_details.txt).
"""

from __future__ import annotations

import linecache
import math
import re
import time
from collections import Counter
from collections.abc import Iterator

import torch

from exporter.graph.torch_nodes import nodes
from exporter.model.eager.evaluation import inference_conditions
from exporter.model.source import Inputs, Source
from exporter.soundness.check_context import Draws, eager
from exporter.soundness.data_dependence import SIZE
from exporter.soundness.execution_paths import path_of
from exporter.soundness.footprint import file_of, is_users
from exporter.soundness.run_recording import Recording, record

# Of seconds, of draws that are kept, also for one way, of numbers, of lines after the read that may compare it.
SECONDS, KEPT, OF_A_WAY, NUMBERS, LINES = 1.0, 12, 3, 12, 3
RANDOM = 16
_NUMBER = re.compile(r"(?<![\w.])\d+\.?\d*(?:e[+-]?\d+)?", re.IGNORECASE)


def guided(source: Source, drawn: Draws) -> Draws:
    """Further draws by label; none where no data are read. For a process of its own."""
    if source.differentiates:
        # A branch on data is refused where there is no value to ask.
        return ()
    with inference_conditions(source):
        runs = [record(source, inputs) for _, inputs in drawn[:2]]
        if not any(map(_read_lines, runs)):
            return ()
        start = time.perf_counter()
        # What happens on a way may show at some inputs only.
        taken = Counter(dict.fromkeys((_way(source, inputs) for _, inputs in drawn), OF_A_WAY))
        found: list[tuple[str, Inputs]] = []
        for label, inputs in _candidates(drawn[0][1], _numbers(source, runs)):
            if len(found) == KEPT or time.perf_counter() - start > SECONDS:
                break
            way = _way(source, inputs)
            if taken[way] < OF_A_WAY and not isinstance(eager(source, inputs), str):
                taken[way] += 1
                found.append((label, inputs))
        return tuple(found)


def _read_lines(run: Recording) -> list[str]:
    return [
        read.where
        for read, origin in zip(run.reads, run.origins, strict=True)
        if any(not label.startswith(SIZE) for label in origin)
    ]


def _way(source: Source, inputs: Inputs) -> int:
    return hash(tuple((step.code, step.instruction) for step in path_of(lambda: eager(source, inputs))))


def _numbers(source: Source, runs: list[Recording]) -> list[float]:
    """What a read may be compared with, those nearest to it first."""
    found: dict[float, None] = {}
    for where in dict.fromkeys(line for run in runs for line in _read_lines(run)):
        file, _, line = where.rpartition(":")
        for number in range(int(line), int(line) + LINES):
            texts = _NUMBER.findall(linecache.getline(file, number).split("#")[0])
            found.update(dict.fromkeys(map(float, texts)))
    for module in source.named.modules():
        if is_users(file_of(type(module))):
            held = [*vars(module).values(), *(p.item() for p in module.parameters(False) if p.numel() == 1)]
            found.update({float(v): None for v in held if isinstance(v, (int, float)) and not isinstance(v, bool)})
    for run in runs:
        for node in nodes(run.graph) if run.graph is not None else ():
            if node.kind() == "prim::Constant" and not node.mustBeNone():
                value = node.output().toIValue()
                value = value.item() if isinstance(value, torch.Tensor) and value.numel() == 1 else value
                if isinstance(value, float):
                    found[value] = None
    return [n for n in found if math.isfinite(n) and n][:NUMBERS]


def _candidates(first: Inputs, numbers: list[float]) -> Iterator[tuple[str, Inputs]]:
    """Every input, then each by itself, brought to where one of its statistics is just above or below a number."""
    real = [i for i, t in enumerate(first) if t.is_floating_point() and t.numel()]
    groups = [real, *([i] for i in real if len(real) > 1)] if real else []
    for number in numbers:
        for to in (number * 1.001, number * 0.999, -number * 1.001, -number * 0.999):
            for name, made_of in _MADE.items():
                for group in groups:
                    made = tuple(made_of(t, to) if i in group else t for i, t in enumerate(first))
                    if all(bool(t.isfinite().all()) for i, t in enumerate(made) if i in group):
                        yield f"{name} {to:g}", made
    generator = torch.Generator().manual_seed(0)
    for _ in range(RANDOM if real else 0):
        scale, shift = (10.0 ** (6 * torch.rand(2, generator=generator, dtype=torch.float64) - 3)).tolist()
        yield (
            f"times {scale:g}, and {shift:g} more",
            tuple(t * scale + shift if i in real else t for i, t in enumerate(first)),
        )


_MADE = {
    "filled with": torch.full_like,
    "with a mean of": lambda t, to: t + (to - t.mean()),
    "with a largest value of": lambda t, to: t + (to - t.max()),
    "with a smallest value of": lambda t, to: t + (to - t.min()),
    "with a norm of": lambda t, to: t * (abs(to) / t.norm()),
    "with a sum of": lambda t, to: t + (to - t.sum()) / t.numel(),
}

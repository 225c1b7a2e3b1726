"""Search for inputs on the other side of a comparison.

Where a run reads data into Python, inputs are made of the numbers that the read may be compared with: literals on its
line, numbers in the graph before it, attributes and parameters of the modules. One that takes a new path through
the user's code is kept, as fuzzers guided by coverage do (AFL: https://lcamtuf.coredump.cx/afl/technical_details.txt).
What is equal to such a number, to zero or to another value is put into one input at a time, and into single elements:
the others would hide what the branch does.
"""

from __future__ import annotations

import itertools
import linecache
import math
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from exporter.capture.data_dependence import SIZE
from exporter.capture.scripting import find_marked_modules
from exporter.common.forking import time_limit
from exporter.common.script_loading import iterate_nodes
from exporter.model.eager.call_cost import NUMBERS_PER_SECOND
from exporter.model.implicit.newton_solver import find_solvers
from exporter.model.source import Inputs, Source
from exporter.soundness.check_context import Draws, Outputs, run_eager
from exporter.soundness.execution_paths import trace_path
from exporter.soundness.footprint import get_class_file, is_user_file
from exporter.soundness.probe_inputs import keep_affordable_draws, keep_timely_draws
from exporter.soundness.run_recording import RunRecording, record_run

# Limits: seconds, new draws, draws per path, numbers, and lines after the read that may compare its value.
SECONDS, MAX_DRAWS, MAX_PER_PATH, MAX_NUMBERS, LINES = 1.0, 12, 3, 12, 3
# Components of an input that are given a number one by one.
COMPONENTS = 4
RANDOM = 16
# Whole numbers that are tried, whatever path they take, and the largest of them.
WHOLE, MAX_WHOLE = 4, 100_000
_NUMBER = re.compile(r"(?<![\w.])\d+\.?\d*(?:e[+-]?\d+)?", re.IGNORECASE)


@dataclass(frozen=True)
class ChosenDraws:
    """The draws that checks run, how many were left out as a call is costly, and the seconds that these would take."""

    draws: Draws
    left_out: int = 0
    seconds: float = 0.0


def choose_draws(
    source: Source,
    probes: Draws,
    numbers: float,
    limit: float,
    first_run: RunRecording,
    code_numbers: Sequence[float],
) -> ChosenDraws:
    """Return the draws at which eager mode ends in good time, and others that take further paths through the code.

    ``numbers``: what a call computes, 0 if nothing is known of it; ``limit``: what all draws may compute together;
    ``first_run``: the recording of the first draw; ``code_numbers``: those of the user's code. Call it in a forked
    process."""
    affordable = keep_affordable_draws(probes, numbers, limit) if numbers else probes
    left_out = len(probes) - len(affordable)
    draws = _add_branch_draws(source, affordable, first_run, code_numbers)
    return ChosenDraws(draws, left_out, left_out * numbers / NUMBERS_PER_SECOND)


def _add_branch_draws(source: Source, probes: Draws, run: RunRecording, code_numbers: Sequence[float]) -> Draws:
    # What may read data may take any number of steps.
    is_compiled = find_solvers(source.parameter_module) or find_marked_modules(source.parameter_module)
    if is_compiled or run.graph is None or _find_read_lines(run):
        probes = keep_timely_draws(source, probes)
    # A branch on data is refused where tensors have no values.
    return probes if source.uses_autograd else (*probes, *_search_branch_inputs(source, probes, run, code_numbers))


def _search_branch_inputs(
    source: Source, probes: Draws, first_run: RunRecording, code_numbers: Sequence[float]
) -> Draws:
    """Return inputs that take new paths, by label; none where no data are read."""
    runs = [first_run, *(record_run(source, inputs) for _, inputs in probes[1:2])]
    if not any(map(_find_read_lines, runs)):
        return ()
    start, first = time.perf_counter(), probes[0][1]
    numbers = _find_comparison_numbers(source, runs)
    base_path, *paths = (_run_path(source, inputs)[0] for _, inputs in probes)
    # Other draws may hide what these paths do.
    equal = _keep_new_paths(source, _iter_equal_candidates(first, numbers), {base_path}, start + SECONDS / 2)
    others = _keep_new_paths(source, _iter_candidates(first, numbers), {base_path, *paths}, start + SECONDS)
    candidates, end = _iter_whole_candidates(first, code_numbers), time.perf_counter() + SECONDS / 2
    return (*equal, *others, *_keep_new_paths(source, candidates, {base_path}, end, least=WHOLE))


def _keep_new_paths(
    source: Source, candidates: Iterable[tuple[str, Inputs]], known: set[int], end: float, *, least: int = 0
) -> list[tuple[str, Inputs]]:
    """Return the candidates that take other paths than those that are ``known``, and the first ones, ``least``; stop at
    the time ``end``."""
    # A fault on a path may show at some inputs only.
    path_counts = Counter(dict.fromkeys(known, MAX_PER_PATH))
    new_draws: list[tuple[str, Inputs]] = []
    for label, inputs in candidates:
        if len(new_draws) == MAX_DRAWS:
            break
        try:
            # Data may decide the number of steps.
            with time_limit(max(end - time.perf_counter(), 0.01)):
                path, has_failed = _run_path(source, inputs)
        except TimeoutError:
            break
        # The model, or what calls it, may have caught the alarm.
        if time.perf_counter() > end:
            break
        if (path_counts[path] < MAX_PER_PATH or len(new_draws) < least) and not has_failed:
            path_counts[path] += 1
            new_draws.append((label, inputs))
    return new_draws


def _find_read_lines(run: RunRecording) -> list[str]:
    reads = zip(run.reads, run.origins, strict=True)
    return [read.where for read, origin in reads if any(not label.startswith(SIZE) for label in origin)]


def _run_path(source: Source, inputs: Inputs) -> tuple[int, bool]:
    """Return a hash of the path that a run takes through the user's code, and whether the run failed."""
    outputs: list[Outputs] = []
    steps = trace_path(lambda: outputs.append(run_eager(source, inputs)))
    return hash(tuple((step.code, step.instruction) for step in steps)), not outputs or isinstance(outputs[0], str)


def _find_comparison_numbers(source: Source, runs: list[RunRecording]) -> list[float]:
    """Return the numbers that a read may be compared with, those nearest to it first."""
    numbers: list[float] = []
    for where in dict.fromkeys(line for run in runs for line in _find_read_lines(run)):
        file, _, line = where.rpartition(":")
        for number in range(int(line), int(line) + LINES):
            numbers += map(float, _NUMBER.findall(linecache.getline(file, number).split("#")[0]))
    for module in source.parameter_module.modules():
        if is_user_file(get_class_file(type(module))):
            attributes = [*vars(module).values(), *(p.item() for p in module.parameters(False) if p.numel() == 1)]
            numbers += [float(v) for v in attributes if isinstance(v, (int, float)) and not isinstance(v, bool)]
    for run in runs:
        for node in iterate_nodes(run.graph) if run.graph is not None else ():
            if node.kind() == "prim::Constant" and not node.mustBeNone():
                value = node.output().toIValue()
                value = value.item() if isinstance(value, torch.Tensor) and value.numel() == 1 else value
                if isinstance(value, float):
                    numbers.append(value)
    return [n for n in dict.fromkeys(numbers) if math.isfinite(n) and n][:MAX_NUMBERS]


def _iter_equal_candidates(first: Inputs, numbers: list[float]) -> Iterator[tuple[str, Inputs]]:
    """Yield inputs with a number, or a value that is there twice, in one input: everywhere, in a row, in an element."""
    real = [i for i, t in enumerate(first) if t.is_floating_point() and t.numel()]

    def change(i: int, place: Any, value: Any) -> Inputs:
        changed = first[i].clone()
        changed[place] = value
        return (*first[:i], changed, *first[i + 1 :])

    for number in (0.0, *numbers):
        for i in real:
            for place in (..., 0, *_list_elements(first[i])) if first[i].ndim else (...,):
                yield f"{number:g} in input {i}", change(i, place, number)
    for i in real:
        element, *others = _list_elements(first[i])
        for place in others:
            yield f"equal values in input {i}", change(i, place, first[i][element])
        for j in real:
            if j != i and first[j].shape == first[i].shape:
                yield f"equal values in inputs {i} and {j}", change(i, element, first[j][element])


def _iter_whole_candidates(first: Inputs, numbers: Sequence[float]) -> Iterator[tuple[str, Inputs]]:
    """Yield inputs with another whole number in one of these inputs, everywhere and in an element: those of the code,
    and their neighbours, those first that the input does not have."""
    # They may be sizes of what the model makes.
    moderate = (int(n) for n in numbers if n == int(n) and abs(n) <= MAX_WHOLE)
    integers = dict.fromkeys(n + shift for n in moderate for shift in (0, 1, -1))
    for i, value in enumerate(first):
        if not value.numel() or value.dtype == torch.bool or value.is_floating_point() or value.is_complex():
            continue
        own = {*value.flatten().tolist()}
        fitting = [n for n in integers if _fits(n, value.dtype)]
        for number in sorted(fitting, key=lambda n, own=own: (n in own, n < 0, abs(n)))[:MAX_NUMBERS]:
            for place in (..., (0,) * value.ndim):
                changed = value.clone()
                changed[place] = number
                yield f"{number} in input {i}", (*first[:i], changed, *first[i + 1 :])


def _fits(number: int, dtype: torch.dtype) -> bool:
    return torch.iinfo(dtype).min <= number <= torch.iinfo(dtype).max


def _list_elements(value: torch.Tensor) -> list[tuple[int, ...]]:
    """Return indices of the first elements, those of the first row first."""
    return list(itertools.islice(itertools.product(*map(range, value.shape)), COMPONENTS))


def _iter_candidates(first: Inputs, numbers: list[float]) -> Iterator[tuple[str, Inputs]]:
    """Yield inputs, all together and each alone, with a statistic just above or below a number."""
    real = [i for i, t in enumerate(first) if t.is_floating_point() and t.numel()]
    groups = [real, *([i] for i in real if len(real) > 1)] if real else []
    for number in numbers:
        for target in (number * 1.001, number * 0.999, -number * 1.001, -number * 0.999):
            for name, transform in _TRANSFORMS.items():
                for group in groups:
                    candidate = tuple(transform(t, target) if i in group else t for i, t in enumerate(first))
                    if all(bool(t.isfinite().all()) for i, t in enumerate(candidate) if i in group):
                        yield f"{name} {target:g}", candidate
    generator = torch.Generator().manual_seed(0)
    for _ in range(RANDOM if real else 0):
        scale, shift = (10.0 ** (6 * torch.rand(2, generator=generator, dtype=torch.float64) - 3)).tolist()
        candidate = tuple(t * scale + shift if i in real else t for i, t in enumerate(first))
        yield f"times {scale:g}, and {shift:g} more", candidate


_TRANSFORMS = {
    "filled with": torch.full_like,
    "with a mean of": lambda t, to: t + (to - t.mean()),
    "with a largest value of": lambda t, to: t + (to - t.max()),
    "with a smallest value of": lambda t, to: t + (to - t.min()),
    "with a norm of": lambda t, to: t * (abs(to) / t.norm()),
    "with a sum of": lambda t, to: t + (to - t.sum()) / t.numel(),
}

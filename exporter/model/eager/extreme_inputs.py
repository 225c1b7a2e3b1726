"""Inputs of extreme magnitude, the farthest decade with finite outputs: cases that ordinary numbers do not reach."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence

from exporter.common.errors import WarmupError
from exporter.common.forking import ForkFailedError, run_in_fork
from exporter.common.tensors import is_finite
from exporter.model.eager.evaluation import evaluate
from exporter.model.eager.warmup import Warmup
from exporter.model.source import Inputs, Source

DECADES = (("small", (-12, -9, -6, -3, -1)), ("large", (12, 9, 6, 3, 1)))
# A loop whose number of steps is in the data, as the degree of a polynomial may be, has no end at a large number: what
# takes so many seconds and so many times an ordinary call is left out.
PATIENCE, TIMES = 20.0, 20.0


def draw_extreme_inputs(warm: Warmup) -> Iterator[tuple[str, Inputs]]:
    """Yield inputs of extreme magnitude that the model accepts, with a name for each."""
    start = time.perf_counter()
    evaluate(warm.source, warm.inputs)
    limit = PATIENCE + TIMES * (time.perf_counter() - start)
    try:
        found_powers = run_in_fork(_find_all_finite, warm.source, warm.inputs, seconds=limit)
    except ForkFailedError:
        # Each by itself: one of them has no end, or ends its process.
        found_powers = [_find_power(warm, powers, limit) for _, powers in DECADES]
    for (name, _), power in zip(DECADES, found_powers, strict=True):
        if power:
            yield f"{name}_1e{power:+d}", _scale(warm.inputs, power)


def _find_all_finite(source: Source, inputs: Inputs) -> list[int]:
    return [_find_finite(source, inputs, powers) for _, powers in DECADES]


def _find_power(warm: Warmup, powers: Sequence[int], limit: float) -> int:
    """Return the first power of ten that the inputs may be scaled with; 0 if there is none."""
    for power in powers:
        with contextlib.suppress(ForkFailedError):
            if run_in_fork(_find_finite, warm.source, warm.inputs, (power,), seconds=limit):
                return power
    return 0


def _find_finite(source: Source, inputs: Inputs, powers: Sequence[int]) -> int:
    for power in powers:
        try:
            outputs = evaluate(source, _scale(inputs, power))
        except WarmupError:
            continue
        if all(map(is_finite, outputs.values())):
            return power
    return 0


def _scale(inputs: Inputs, power: int) -> Inputs:
    return tuple(
        (t * 10.0**power).to(t.dtype) if t.dtype.is_floating_point or t.dtype.is_complex else t for t in inputs
    )

"""Inputs of extreme magnitude: cases that ordinary numbers do not reach.

They are of the farthest decade with outputs that are finite, and not rounding errors, which every runtime has of its
own: where inputs that differ in the last digit give another number, no digit of it is right."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence

import torch

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
# A number is a rounding error that changes by so much of itself, and by so many units of the largest one's last digit.
CHANGE, UNITS = 0.01, 1e6


def draw_extreme_inputs(warm: Warmup) -> Iterator[tuple[str, Inputs]]:
    """Yield inputs of extreme magnitude that the model accepts, with a name for each."""
    start = time.perf_counter()
    evaluate(warm.source, warm.inputs)
    limit = PATIENCE + TIMES * (time.perf_counter() - start)
    for name, powers in DECADES:
        power = _find_power(warm, powers, limit)
        if power:
            yield f"{name}_1e{power:+d}", _scale(warm.inputs, power)


def _find_power(warm: Warmup, powers: Sequence[int], limit: float) -> int:
    """Return the first power of ten that the inputs may be scaled with; 0 if there is none."""
    try:
        return run_in_fork(_find_finite, warm.source, warm.inputs, powers, seconds=limit)
    except ForkFailedError:
        if len(powers) == 1:
            return 0
        accepted = (_find_power(warm, (power,), limit) for power in powers)
        return next((power for power in accepted if power), 0)


def _find_finite(source: Source, inputs: Inputs, powers: Sequence[int]) -> int:
    for power in powers:
        try:
            scaled = _scale(inputs, power)
            outputs = evaluate(source, scaled)
            if all(map(is_finite, outputs.values())) and not _has_rounding_errors(source, scaled, outputs):
                return power
        except WarmupError:
            continue
    return 0


def _has_rounding_errors(source: Source, inputs: Inputs, outputs: Mapping[str, torch.Tensor]) -> bool:
    """Return whether an output has a number without a digit that is right: neighbours of the inputs give another one.

    The condition of a function: Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 1.6."""
    others = evaluate(source, tuple(map(_move_last_digits, inputs)))
    for name, value in outputs.items():
        if value.dtype.is_floating_point and value.numel():
            sizes = value.double().abs()
            floor = UNITS * torch.finfo(value.dtype).eps * sizes.max()
            if bool(((value.double() - others[name].double()).abs() > torch.maximum(CHANGE * sizes, floor)).any()):
                return True
    return False


def _move_last_digits(tensor: torch.Tensor) -> torch.Tensor:
    """Return the next larger and the next smaller numbers in turn; zeros, which are exact, stay."""
    if not tensor.dtype.is_floating_point:
        return tensor
    is_odd = torch.arange(tensor.numel(), device=tensor.device).reshape(tensor.shape) % 2 == 1
    ends = torch.where(is_odd, -math.inf, math.inf).to(tensor.dtype)
    return torch.where(tensor == 0, tensor, torch.nextafter(tensor, ends))


def _scale(inputs: Inputs, power: int) -> Inputs:
    return tuple(
        (t * 10.0**power).to(t.dtype) if t.dtype.is_floating_point or t.dtype.is_complex else t for t in inputs
    )

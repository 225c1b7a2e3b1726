"""Inputs that a model may meet and that warmup did not show it: signs, zeros, ties, magnitudes, NaN."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import torch

from exporter.common.forking import time_limit
from exporter.model.eager.call_cost import NUMBERS_PER_SECOND
from exporter.model.eager.input_sampling import InputSampler
from exporter.model.source import Inputs, Source
from exporter.soundness.check_context import Draws, alias_inputs, run_eager

SECONDS = 0.5
# The draws that every model has: other values, and either side of a branch on the sign of a number.
SMALLEST = ("traced", "other values", "mixed signs", "spread")
# Numbers that all draws may compute together, about two seconds in eager mode, and the draws that a costly model keeps
# first beside the smallest ones: those that differ most from what was traced.
LIMIT = 2.0 * NUMBERS_PER_SECOND
PREFERRED = ("nan in one row", "zeros", "times 1000", "times 1e-12", "equal rows", "negative", "inf in one row", "ones")


def draw_probe_inputs(sampler: InputSampler, size: int, generator: torch.Generator) -> Draws:
    """Draw inputs of batch ``size`` by label; integers keep the values that warmup saw, in another order."""
    first = sampler.draw(size, generator)
    probes: list[tuple[str, Inputs]] = [("other values", sampler.draw(size, generator))]

    def add(label: str, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
        discrete = [not t.is_floating_point() and not t.is_complex() for t in first]
        pairs = zip(first, discrete, strict=True)
        probes.append((label, tuple(replace_discrete(label, t) if d else change(t).to(t.dtype) for t, d in pairs)))

    def replace_discrete(label: str, value: torch.Tensor) -> torch.Tensor:
        """Replace masks by all, none or some; whole numbers by others of the model's inputs, as they may be indices."""
        if not value.numel() or label not in ("zeros", "ones", "mixed signs", "whole numbers", "spread"):
            # The rows in another order, whatever they index.
            return value[torch.randperm(value.shape[0], generator=generator)] if value.ndim else value
        if label in ("zeros", "ones"):
            low = label == "zeros"
            number = not low if value.dtype == torch.bool else int(value.min() if low else value.max())
            return torch.full_like(value, number)
        if value.dtype == torch.bool:
            return torch.randint(0, 2, value.shape, generator=generator).bool()
        return value.flatten()[torch.randint(value.numel(), value.shape, generator=generator)]

    add("signs changed", lambda t: -t)
    add("positive", torch.abs)
    add("negative", lambda t: -t.abs())
    add("mixed signs", lambda t: t * (torch.randint(0, 2, t.shape, generator=generator) * 2 - 1))
    add("zeros", torch.zeros_like)
    add("one row zero", lambda t: _set_row(t, 0, 0.0))
    add("ones", torch.ones_like)
    add("equal rows", lambda t: t[:1].expand(t.shape).clone() if t.ndim else t)
    add("ties", lambda t: t.flatten()[:1].expand(t.shape).clone() if t.ndim and t.numel() else t)
    add("whole numbers", lambda t: t if t.is_complex() else (3 * t).round())
    add("spread", lambda t: torch.randn(t.shape, generator=generator, dtype=torch.float64) * 3)
    for factor in (1e-12, 1e-3, 10.0, 1e3, 1e8):
        add(f"times {factor:g}", lambda t, factor=factor: t * factor)
    for value in (float("nan"), float("inf"), -float("inf")):
        add(f"{value} in one row", lambda t, value=value: _set_row(t, -1, value))
    equal_inputs = alias_inputs(first)
    if equal_inputs is not None:
        probes.append(("equal inputs", tuple(t.clone() for t in equal_inputs)))
    return (("traced", first), *probes)


def keep_affordable_draws(probes: Draws, numbers: float, limit: float) -> Draws:
    """Return the draws that compute no more than ``limit`` numbers together, ``numbers`` each, in the order of
    ``probes``; the smallest ones in any case."""
    ranks = {label: rank for rank, label in enumerate((*SMALLEST, *PREFERRED))}
    labels = sorted((label for label, _ in probes), key=lambda label: ranks.get(label, len(ranks)))
    kept = labels[: max(len(SMALLEST), int(min(limit / numbers, len(probes))))]
    return tuple((label, inputs) for label, inputs in probes if label in kept)


def keep_timely_draws(source: Source, probes: Draws) -> Draws:
    """Return the draws at which eager mode ends in good time: data may decide the number of steps."""
    start = time.perf_counter()
    run_eager(source, probes[0][1])
    seconds = max(SECONDS, 50 * (time.perf_counter() - start))
    timely = [probes[0]]
    for label, inputs in probes[1:]:
        start = time.perf_counter()
        with contextlib.suppress(TimeoutError), time_limit(seconds):
            run_eager(source, inputs)
        if time.perf_counter() - start < seconds:
            timely.append((label, inputs))
    return tuple(timely)


def _set_row(value: torch.Tensor, index: int, number: float) -> torch.Tensor:
    changed = value.clone()
    if changed.ndim and changed.shape[0]:
        changed[index] = number
    elif not changed.ndim:
        changed.fill_(number)
    return changed

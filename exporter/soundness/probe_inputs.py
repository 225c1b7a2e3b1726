"""Inputs that a model may meet and warmup did not show it: signs, zeros, ties, magnitudes, NaN."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import torch

from exporter.common.forking import no_longer_than
from exporter.model.eager.evaluation import inference_conditions
from exporter.model.eager.input_sampling import Sampler
from exporter.model.source import Inputs, Source
from exporter.soundness.check_context import Draws, eager, same_as_one

SECONDS = 0.5


def draws(sampler: Sampler, size: int, generator: torch.Generator) -> Draws:
    """Inputs of batch ``size`` by label; integers keep the values that warmup saw, in another order."""
    first = sampler.draw(size, generator)
    found: list[tuple[str, Inputs]] = [("other values", sampler.draw(size, generator))]

    def add(label: str, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
        found.append((label, tuple(change(t).to(t.dtype) if _real(t) else other(label, t) for t in first)))

    def other(label: str, value: torch.Tensor) -> torch.Tensor:
        """Masks: all, none, some. Whole numbers: from those that the model was given, as they may be indices."""
        if not value.numel() or label not in ("zeros", "ones", "mixed signs", "whole numbers", "spread"):
            return _shuffled(value, generator)
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
    add("one row zero", lambda t: _row(t, 0, 0.0))
    add("ones", torch.ones_like)
    add("equal rows", lambda t: t[:1].expand(t.shape).clone() if t.ndim else t)
    add("ties", lambda t: t.flatten()[:1].expand(t.shape).clone() if t.ndim and t.numel() else t)
    add("whole numbers", lambda t: t if t.is_complex() else (3 * t).round())
    add("spread", lambda t: torch.randn(t.shape, generator=generator, dtype=torch.float64) * 3)
    for factor in (1e-12, 1e-3, 10.0, 1e3, 1e8):
        add(f"times {factor:g}", lambda t, factor=factor: t * factor)
    for value in (float("nan"), float("inf"), -float("inf")):
        add(f"{value} in one row", lambda t, value=value: _row(t, -1, value))
    same = same_as_one(first)
    if same is not None:
        found.append(("equal inputs", tuple(t.clone() for t in same)))
    return (("traced", first), *found)


def timely_labels(source: Source, drawn: Draws) -> list[str]:
    """Labels of the draws at which eager mode comes to an end in good time: data may decide on the number of steps."""
    kept = []
    with inference_conditions(source):
        start = time.perf_counter()
        eager(source, drawn[0][1])
        seconds = max(SECONDS, 50 * (time.perf_counter() - start))
        for label, inputs in drawn:
            start = time.perf_counter()
            with contextlib.suppress(TimeoutError), no_longer_than(seconds):
                eager(source, inputs)
            if label == drawn[0][0] or time.perf_counter() - start < seconds:
                kept.append(label)
    return kept


def _real(value: torch.Tensor) -> bool:
    return value.dtype.is_floating_point or value.dtype.is_complex


def _shuffled(value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """The rows in another order, whatever they index."""
    if value.ndim == 0:
        return value
    return value[torch.randperm(value.shape[0], generator=generator)]


def _row(value: torch.Tensor, index: int, number: float) -> torch.Tensor:
    changed = value.clone()
    if changed.ndim and changed.shape[0]:
        changed[index] = number
    elif not changed.ndim:
        changed.fill_(number)
    return changed

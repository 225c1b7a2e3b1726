"""The fastest engine of an archive on this machine, for the batch sizes that a host has."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from exporter.archive import pt_archive
from exporter.common.errors import UsageError
from runtime_checks.bench.candidates import collect_rows
from runtime_checks.bench.steady_state import measure_throughput
from runtime_checks.engines.selection import KERNEL, PT2, TORCHSCRIPT, EngineChoice, EngineWarning
from runtime_checks.model import Model, load

METHOD, ROUNDS = "forward", 3


def load_fastest(path: Path, device: str, batches: Sequence[int], **options: Any) -> Model:
    """Load a ``.pt`` with each engine that passes its cases here, time them, and return the fastest.

    Args:
        path: The archive.
        device: Where it runs.
        batches: The sizes of batches that count, all alike.
        **options: Those of ``load``.

    Returns:
        The model; its ``choice`` says what was timed, and why an engine was left out.

    Raises:
        UsageError: A size is no batch, or the file is no ``.pt``.
    """
    sizes = tuple(batches)
    if not sizes or not all(isinstance(size, int) and size > 0 for size in sizes):
        raise UsageError("a batch has elements", where="batches", got=str(sizes), expected="sizes such as (1, 1000)")
    models, left_out = {TORCHSCRIPT: load(path, device, **options)}, dict[str, str]()
    for engine in (PT2, KERNEL):
        model, reason = _try_engine(path, device, engine, options)
        if reason:
            left_out[engine] = reason
        else:
            models[engine] = model
    times = _measure(path, device, models, sizes)
    name = min(models, key=lambda engine: _compare(times, engine)) if len(models) > 1 else TORCHSCRIPT
    model = models[name]
    model.choice = EngineChoice(name, times, left_out)
    return model


def _try_engine(path: Path, device: str, engine: str, options: Mapping[str, Any]) -> tuple[Model, str]:
    """Load a model with an engine; with the reason where TorchScript would run it."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = load(path, device, engine=engine, **options)
    reasons = list[str]()
    for warning in caught:
        if issubclass(warning.category, EngineWarning):
            reasons.append(str(warning.message))
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    return model, "; ".join(reasons)


def _measure(
    path: Path, device: str, models: Mapping[str, Model], batches: Sequence[int]
) -> dict[str, dict[int, float]]:
    """Return nanoseconds of a call by engine and batch size; none where there is nothing to choose from."""
    times: dict[str, dict[int, float]] = {engine: {} for engine in models}
    if len(models) < 2:
        return times
    archive = pt_archive.read(path)
    rows = collect_rows(archive.cases(), archive.contract, METHOD)
    calls = {engine: model.engine.run for engine, model in models.items()}
    for batch in batches if rows.batched else batches[:1]:
        inputs = tuple(value.to(device) for value in rows.take(batch)[0])
        on = "cpu" if device == "cpu" else "cuda"
        for timing in measure_throughput(calls, METHOD, inputs, batch, rounds=ROUNDS, device=on):
            times[timing.candidate][batch] = timing.median
    return times


def _compare(times: Mapping[str, Mapping[int, float]], engine: str) -> float:
    """Return how much longer an engine takes than the fastest of each batch size, all sizes alike."""
    best = {batch: min(values[batch] for values in times.values()) for batch in times[engine]}
    return sum(math.log(value / best[batch]) for batch, value in times[engine].items())

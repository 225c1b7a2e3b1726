"""The fastest engine of an archive on this machine, for the batch sizes that a host has."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from exporter.archive import pt_archive
from exporter.archive.identity_signature import Signer
from exporter.archive.pt_archive import Archive
from exporter.common.errors import UsageError
from runtime_checks.bench.candidates import collect_rows
from runtime_checks.bench.steady_state import measure_throughput
from runtime_checks.engines.engines import TorchScriptEngine
from runtime_checks.engines.interpreter import InterpreterEngine
from runtime_checks.engines.selection import AUTO, INTERPRETER, KERNEL, PT2, TORCHSCRIPT, EngineChoice, try_engine
from runtime_checks.model import Model, load
from runtime_checks.native_code import resolve_trust

METHOD, ROUNDS = "forward", 3


def load_fastest(
    path: Path, device: str, batches: Sequence[int], *, envelope: str, trust: str, public_key: Signer | None
) -> Model:
    """Load a ``.pt`` with each engine that passes its cases here, time them, and return the fastest.

    Args:
        path: The archive.
        device: Where it runs.
        batches: The sizes of batches that count, all alike.
        envelope: As for ``load``.
        trust: As for ``load``.
        public_key: As for ``load``.

    Returns:
        The model; its ``choice`` says what was timed, and why an engine was left out.

    Raises:
        UsageError: A size is no batch, or the file is no ``.pt``.
    """
    sizes = tuple(batches)
    if not sizes or not all(isinstance(size, int) and size > 0 for size in sizes):
        raise UsageError("a batch has elements", where="batches", got=str(sizes), expected="sizes such as (1, 1000)")
    plain = load(path, device, envelope=envelope, trust=trust, public_key=public_key)
    if not isinstance(plain.engine, (TorchScriptEngine, InterpreterEngine)):
        mend = "load it without an engine, or load the .pt"
        raise UsageError("an engine is chosen for a .pt", where=str(path), got=f"engine={AUTO!r}", mend=mend)
    content = pt_archive.freeze_archive(path)
    archive, trusted = pt_archive.read(path, content), resolve_trust(path, trust, public_key, content)
    own = TORCHSCRIPT if isinstance(plain.engine, TorchScriptEngine) else INTERPRETER
    models, left_out = {own: plain}, dict[str, str]()
    for name in (PT2, KERNEL):
        engine, reason = try_engine(archive, name, device, lambda: plain.engine.parameters, trusted)
        if engine is None:
            left_out[name] = reason
        else:
            models[name] = Model(archive.contract, engine, device, envelope)
    times = _measure(archive, device, models, sizes)
    chosen = min(models, key=lambda name: _compare(times, name))
    models[chosen].choice = EngineChoice(chosen, times, left_out)
    return models[chosen]


def _measure(
    archive: Archive, device: str, models: Mapping[str, Model], batches: Sequence[int]
) -> dict[str, dict[int, float]]:
    """Return nanoseconds of a call by engine and batch size; none where there is nothing to choose from."""
    times: dict[str, dict[int, float]] = {name: {} for name in models}
    if len(models) < 2:
        return times
    rows = collect_rows(archive.cases(), archive.contract, METHOD)
    calls = {name: model.engine.run for name, model in models.items()}
    for batch in batches if rows.batched else batches[:1]:
        inputs = tuple(value.to(device) for value in rows.take(batch)[0])
        timings = measure_throughput(calls, METHOD, inputs, batch, rounds=ROUNDS, device=torch.device(device).type)
        for timing in timings:
            times[timing.candidate][batch] = timing.median
    return times


def _compare(times: Mapping[str, Mapping[int, float]], engine: str) -> float:
    """Return how much longer an engine takes than the fastest of each batch size, all sizes alike."""
    best = {batch: min(values[batch] for values in times.values()) for batch in times[engine]}
    return sum(math.log(value / best[batch]) for batch, value in times[engine].items())

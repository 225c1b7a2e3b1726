"""Cold starts of a candidate in a fresh process: loading, the first calls, and the memory of a batch."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path

import torch

from exporter.common.errors import summarize_error
from runtime_checks.bench.candidates import Candidate, Rows

CALLS = 5
_PEAK = Path("/proc/self/status")
_RESET = Path("/proc/self/clear_refs")


@dataclass(frozen=True)
class ColdStart:
    """Milliseconds of a cold start; ``peaks`` are MiB above the loaded process, by batch. ``error``: it did not run."""

    candidate: str
    batch: int
    load: float = 0.0
    calls: tuple[float, ...] = ()
    peaks: dict[int, float] = field(default_factory=dict)
    error: str = ""


def measure_cold_start(
    candidate: Candidate, method: str, rows: Rows, batches: Sequence[int], threads: int, seconds: float
) -> ColdStart:
    """Measure a cold start. ``batches`` are for the memory, the first also for the first calls. Report an early end."""
    try:
        pickle.dumps(candidate.open)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        reason = f"it cannot be opened in another process: {summarize_error(error)}"
        return ColdStart(candidate.label, batches[0], error=reason)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context) as pool:
        try:
            return pool.submit(_measure, candidate, method, rows, list(batches), threads).result(seconds)
        except (BrokenProcessPool, FutureTimeout) as error:
            for process in list(getattr(pool, "_processes", {}).values()):
                process.kill()
            message = f"more than {seconds:g} s" if isinstance(error, FutureTimeout) else "its process ended early"
            return ColdStart(candidate.label, batches[0], error=message)


def _measure(candidate: Candidate, method: str, rows: Rows, batches: Sequence[int], threads: int) -> ColdStart:
    torch.set_num_threads(threads)
    first = batches[0]
    inputs, _ = rows.take(first)
    start = time.perf_counter()
    call = candidate.open(threads)
    load = time.perf_counter() - start
    with torch.no_grad():
        durations = []
        for _ in range(CALLS):
            start = time.perf_counter()
            call(method, inputs)
            durations.append(1e3 * (time.perf_counter() - start))
        peaks = {}
        for batch in batches:
            batch_inputs, _ = rows.take(batch)
            before = _read_peak_memory(reset=True)
            try:
                call(method, batch_inputs)
            except (RuntimeError, MemoryError):
                break
            peaks[batch] = max(0.0, _read_peak_memory() - before)
    return ColdStart(candidate.label, first, 1e3 * load, tuple(durations), peaks)


def _read_peak_memory(*, reset: bool = False) -> float:
    """Return the peak memory of the process in MiB; since now, with ``reset``."""
    if reset and os.access(_RESET, os.W_OK):
        _RESET.write_text("5")
    lines = _PEAK.read_text().splitlines() if _PEAK.exists() else []
    line = next((line for line in lines if line.startswith("VmHWM")), "")
    return int(line.split()[1]) / 1024 if line else 0.0

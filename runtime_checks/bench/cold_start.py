"""A candidate in a fresh process: loading, the first calls, and what memory a batch takes."""

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

from exporter.common.errors import first_line
from runtime_checks.bench.candidates import Candidate, Rows

CALLS = 5
_PEAK = Path("/proc/self/status")
_RESET = Path("/proc/self/clear_refs")


@dataclass(frozen=True)
class Cold:
    """Milliseconds; ``peaks`` are MiB above what the loaded process had, by batch. ``error``: it did not run."""

    candidate: str
    batch: int
    load: float = 0.0
    calls: tuple[float, ...] = ()
    peaks: dict[int, float] = field(default_factory=dict)
    error: str = ""


def cold(candidate: Candidate, method: str, rows: Rows, batches: Sequence[int], threads: int, seconds: float) -> Cold:
    """``batches`` for the memory: the first is that of the first calls. A process that ends says so."""
    try:
        pickle.dumps(candidate.open)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        return Cold(candidate.label, batches[0], error=f"it cannot be opened in another process: {first_line(error)}")
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context) as pool:
        try:
            return pool.submit(_measured, candidate, method, rows, list(batches), threads).result(seconds)
        except (BrokenProcessPool, FutureTimeout) as error:
            for process in list(getattr(pool, "_processes", {}).values()):
                process.kill()
            said = f"more than {seconds:g} s" if isinstance(error, FutureTimeout) else "its process ended early"
            return Cold(candidate.label, batches[0], error=said)


def _measured(candidate: Candidate, method: str, rows: Rows, batches: Sequence[int], threads: int) -> Cold:
    torch.set_num_threads(threads)
    first = batches[0]
    inputs, _ = rows.at(first)
    start = time.perf_counter()
    call = candidate.open(threads)
    load = time.perf_counter() - start
    with torch.no_grad():
        took = []
        for _ in range(CALLS):
            start = time.perf_counter()
            call(method, inputs)
            took.append(1e3 * (time.perf_counter() - start))
        peaks = {}
        for batch in batches:
            given, _ = rows.at(batch)
            before = _peak(reset=True)
            try:
                call(method, given)
            except (RuntimeError, MemoryError):
                break
            peaks[batch] = max(0.0, _peak() - before)
    return Cold(candidate.label, first, 1e3 * load, tuple(took), peaks)


def _peak(*, reset: bool = False) -> float:
    """MiB that the process has had at once; since now, with ``reset``."""
    if reset and os.access(_RESET, os.W_OK):
        _RESET.write_text("5")
    line = (
        next((line for line in _PEAK.read_text().splitlines() if line.startswith("VmHWM")), "")
        if _PEAK.exists()
        else ""
    )
    return int(line.split()[1]) / 1024 if line else 0.0

"""The whole comparison: contracts and numbers first, then cold and steady calls at each batch."""

from __future__ import annotations

import dataclasses
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from exporter.common.errors import UsageError
from runtime_checks import containers
from runtime_checks.bench.candidates import Call, Candidate, hold_contracts, hold_numbers, labels_of, of_file, rows_of
from runtime_checks.bench.cold_start import Cold, cold
from runtime_checks.bench.steady_state import Timing, bandwidth, kernels, steady

BATCHES = (1, 10, 100, 1_000, 10_000, 100_000, 1_000_000)
# Of what the machine has free, a batch may take.
SHARE = 0.6


@dataclass(frozen=True)
class Bench:
    """``bandwidth`` is in bytes a second; ``bounds`` are nanoseconds of a call that only reads the inputs and writes
    the outputs, by batch. ``notes`` say what was left out, and why."""

    model: str
    method: str
    device: str
    threads: int
    machine: dict[str, Any]
    bandwidth: float
    bounds: dict[int, float]
    timings: tuple[Timing, ...]
    colds: tuple[Cold, ...]
    kernels: dict[str, int]
    notes: tuple[str, ...]

    def of(self, candidate: str, batch: int) -> Timing | None:
        return next((t for t in self.timings if (t.candidate, t.batch) == (candidate, batch)), None)

    @property
    def candidates(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(t.candidate for t in self.timings))

    @property
    def batches(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys(t.batch for t in self.timings))

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def bench(
    paths: Sequence[Path],
    *,
    others: Sequence[Candidate] = (),
    method: str = "forward",
    batches: Sequence[int] = BATCHES,
    threads: int = 1,
    device: str = "cpu",
    time_limit: float = 300.0,
    progress: Callable[[str], object] = lambda text: None,
) -> Bench:
    """Time the files, and ``others`` that run the same contract, on rows of the stored cases of the first.

    Raises ``UsageError`` without candidates, for files of different contracts, and for no batch; ``MismatchError``
    where a candidate does not compute the numbers that the cases have.
    """
    contract = hold_contracts(paths, method)
    if not batches or min(batches) < 1 or threads < 1:
        got = f"batches {', '.join(map(str, batches))}; {threads} threads"
        raise UsageError("there is nothing to time", where="--batch, --threads", got=got, expected="numbers from 1 on")
    rows = rows_of(containers.read(paths[0]).cases(), contract, method)
    batches = sorted(set(batches)) if rows.batched else [1]
    labels = labels_of(paths)
    candidates = [*(of_file(path, label, device) for path, label in zip(paths, labels, strict=True)), *others]
    notes: list[str] = []
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        some = [b for b in batches if rows.bytes_of(b) < 2**28][:6] or batches[:1]
        colds = []
        for candidate in candidates if device == "cpu" else ():
            progress(f"{candidate.label}: a fresh process")
            colds.append(cold(candidate, method, rows, some, threads, time_limit))
        calls = {candidate.label: candidate.open(threads) for candidate in candidates}
        timings: list[Timing] = []
        launched: dict[str, int] = {}
        with torch.no_grad():
            speed = bandwidth(device)
            for batch in batches:
                needed = _needed(colds, rows.bytes_of(batch), batch)
                if needed > SHARE * _free():
                    notes.append(f"batch {batch:,}: left out, as it takes about {needed / 2**30:.1f} GiB")
                    continue
                progress(f"batch {batch:,}")
                inputs, wanted = rows.at(batch)
                inputs = tuple(t.to(device) for t in inputs)
                ready = _ready(calls, contract, method, inputs, wanted, batch, notes)
                if device != "cpu":
                    launched = {label: kernels(call, method, inputs) for label, call in ready.items()}
                timings += steady(ready, method, inputs, batch, device=device)
    finally:
        torch.set_num_threads(before)
    return Bench(
        model=contract.name,
        method=method,
        device=device,
        threads=threads,
        machine=machine(),
        bandwidth=speed,
        bounds={b: 1e9 * rows.bytes_of(b) / speed for b in batches},
        timings=tuple(timings),
        colds=tuple(colds),
        kernels=launched,
        notes=tuple(notes),
    )


def _ready(
    calls: dict[str, Call], contract: Any, method: str, inputs: Any, wanted: Any, batch: int, notes: list[str]
) -> dict[str, Call]:
    """Those that run this batch, and give its numbers."""
    found = {}
    for label, call in calls.items():
        try:
            got = call(method, inputs)
        except (RuntimeError, MemoryError) as error:
            text = str(error).splitlines()
            if "memory" not in str(error).lower() and not isinstance(error, MemoryError):
                raise
            notes.append(f"batch {batch:,}: {label} has too little memory ({text[0] if text else 'out of memory'})")
            continue
        hold_numbers(label, contract, method, got, wanted)
        found[label] = call
    return found


def _needed(colds: Sequence[Cold], whole: int, batch: int) -> float:
    """Bytes: as the fresh processes grew with the batch, or some copies of inputs and outputs."""
    slopes = [peak * 2**20 / b for c in colds for b, peak in c.peaks.items() if b >= 1_000]
    return whole + max([4.0 * whole, *(slope * batch for slope in slopes)])


def _free() -> float:
    place = Path("/proc/meminfo")
    lines = place.read_text().splitlines() if place.exists() else []
    return next((1024.0 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable")), 2.0**62)


def machine() -> dict[str, Any]:
    """What the figures are of: processor, versions, load."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(errors="replace").splitlines() if info.exists() else []
    name = next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor()
    )
    return {
        "processor": name,
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
    }

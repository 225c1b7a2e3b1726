"""The whole benchmark: contracts and numbers first, then cold and steady calls at each batch."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from exporter.common.errors import RunError, UsageError, summarize_error
from runtime_checks import containers
from runtime_checks.bench.candidates import (
    Call,
    Candidate,
    Rows,
    check_numbers,
    check_same_contract,
    collect_rows,
    make_file_candidate,
    make_labels,
)
from runtime_checks.bench.cold_start import ColdJob, ColdStart, measure_cold_start
from runtime_checks.bench.steady_state import Timing, count_kernel_launches, measure_bandwidth, measure_throughput
from runtime_checks.native_code import GRAPHS, check_code_trust, check_trust_mode

BATCHES = (1, 10, 100, 1_000, 10_000, 100_000, 1_000_000)
# The part of the machine's free memory that a batch may take.
SHARE = 0.6


@dataclass(frozen=True)
class BenchmarkResult:
    """The result of a benchmark. ``bandwidth`` is in bytes a second; ``bounds`` are nanoseconds of a call that only
    reads the inputs and writes the outputs, by batch. ``notes`` say what was left out, and why."""

    model: str
    method: str
    device: str
    threads: int
    machine: dict[str, Any]
    bandwidth: float
    bounds: dict[int, float]
    timings: tuple[Timing, ...]
    colds: tuple[ColdStart, ...]
    kernels: dict[str, int]
    notes: tuple[str, ...]

    def find_timing(self, candidate: str, batch: int) -> Timing | None:
        """Return the timing of a candidate at a batch, None if it was not run."""
        return next((t for t in self.timings if (t.candidate, t.batch) == (candidate, batch)), None)

    @property
    def candidates(self) -> tuple[str, ...]:
        """Return the labels of the timed candidates."""
        return tuple(dict.fromkeys(t.candidate for t in self.timings))

    @property
    def batches(self) -> tuple[int, ...]:
        """Return the timed batches."""
        return tuple(dict.fromkeys(t.batch for t in self.timings))

    def as_dict(self) -> dict[str, Any]:
        """Return the result as a dict."""
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class BenchmarkOptions:
    """What is timed: a ``method`` on a ``device`` with so many ``threads``, at ``batches``. A fresh process of a
    candidate has ``time_limit`` seconds. ``trust`` is ``native`` where somebody else's native code may run. A process
    has no more than ``memory_limit`` GiB, and None for all that are free."""

    method: str = "forward"
    batches: Sequence[int] = BATCHES
    threads: int = 1
    device: str = "cpu"
    time_limit: float = 300.0
    trust: str = GRAPHS
    memory_limit: float | None = None

    def __post_init__(self) -> None:
        check_trust_mode(self.trust)
        if not self.batches or min(self.batches) < 1 or self.threads < 1:
            got = f"batches {', '.join(map(str, self.batches))}; {self.threads} threads"
            what, expected = "there is nothing to time", "numbers from 1 on"
            raise UsageError(what, where="--batch, --threads", got=got, expected=expected)


def run_benchmark(
    paths: Sequence[Path],
    options: BenchmarkOptions,
    *,
    others: Sequence[Candidate] = (),
    progress: Callable[[str], object] = lambda text: None,
) -> BenchmarkResult:
    """Time the files, and ``others`` that run the same contract, on rows of the stored cases of the first.

    Raises ``UsageError`` without candidates, and for files of different contracts; ``TrustError`` for native code that
    was not made here; ``MismatchError`` where a candidate does not compute the numbers that the cases have;
    ``RunError`` where it does not run.
    """
    method, device, threads = options.method, options.device, options.threads
    if not paths:
        raise UsageError("there is nothing to time", where="FILE", expected="archives, .pt2 or ONNX containers")
    labels = make_labels(paths)
    opened = {path: containers.open_container(path) for path in paths}
    for path, container in opened.items():
        check_code_trust(container, path, options.trust)
    contract = opened[paths[0]].contract
    check_same_contract({path: container.contract for path, container in opened.items()}, method)
    rows = collect_rows(opened[paths[0]].cases(), contract, method)
    batches = sorted(set(options.batches)) if rows.batched else [1]
    files = zip(paths, labels, strict=True)
    candidates = [*(make_file_candidate(path, label, device, options.trust) for path, label in files), *others]
    notes: list[str] = []
    with use_threads(threads):
        colds = _measure_cold_starts(candidates, rows, batches, options, progress) if device == "cpu" else []
        calls = {candidate.label: candidate.open(threads) for candidate in candidates}
        timings: list[Timing] = []
        launched: dict[str, int] = {}
        speed = measure_bandwidth(device)
        for batch in batches:
            needed = _estimate_memory(colds, rows.count_bytes(batch), batch)
            if needed > SHARE * _read_free_memory(options.memory_limit):
                notes.append(f"batch {batch:,}: left out, as it takes about {needed / 2**30:.1f} GiB")
                continue
            progress(f"batch {batch:,}")
            inputs, expected = rows.take(batch)
            inputs = tuple(t.to(device) for t in inputs)
            ready = _select_ready(calls, contract, method, inputs, expected, batch, notes)
            if device != "cpu":
                launched = {label: count_kernel_launches(call, method, inputs) for label, call in ready.items()}
            timings += measure_throughput(ready, method, inputs, batch, device=device)
    return BenchmarkResult(
        model=contract.name,
        method=method,
        device=device,
        threads=threads,
        machine=describe_machine(),
        bandwidth=speed,
        bounds={b: 1e9 * rows.count_bytes(b) / speed for b in batches},
        timings=tuple(timings),
        colds=tuple(colds),
        kernels=launched,
        notes=tuple(notes),
    )


def _measure_cold_starts(
    candidates: Sequence[Candidate],
    rows: Rows,
    batches: Sequence[int],
    options: BenchmarkOptions,
    progress: Callable[[str], object],
) -> list[ColdStart]:
    colds, first_batches = list[ColdStart](), [b for b in batches if rows.count_bytes(b) < 2**28][:6] or batches[:1]
    for candidate in candidates:
        progress(f"{candidate.label}: a fresh process")
        job = ColdJob(candidate, options.method, rows, tuple(first_batches), options.threads)
        colds.append(measure_cold_start(job, options.time_limit))
    return colds


@contextlib.contextmanager
def use_threads(count: int) -> Iterator[None]:
    """Run the block with this number of torch's threads, and without gradients."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        with torch.no_grad():
            yield
    finally:
        torch.set_num_threads(before)


def _select_ready(
    calls: dict[str, Call], contract: Any, method: str, inputs: Any, expected: Any, batch: int, notes: list[str]
) -> dict[str, Call]:
    """Select the candidates that run this batch; check that they give its numbers."""
    ready = {}
    for label, call in calls.items():
        try:
            got = call(method, inputs)
        except (RuntimeError, MemoryError) as error:
            text = str(error).splitlines()
            if "memory" not in str(error).lower() and not isinstance(error, MemoryError):
                where, mend = f"method {method!r}, batch {batch:,}", "verify it first: torchferry verify"
                raise RunError(f"{label} does not run", where=where, got=summarize_error(error), mend=mend) from error
            notes.append(f"batch {batch:,}: {label} has too little memory ({text[0] if text else 'out of memory'})")
            continue
        check_numbers(label, contract, method, got, expected)
        ready[label] = call
    return ready


def _estimate_memory(colds: Sequence[ColdStart], size: int, batch: int) -> float:
    """Estimate the bytes of a batch: as the fresh processes grew with it, or some copies of inputs and outputs."""
    slopes = [peak * 2**20 / b for c in colds for b, peak in c.peaks.items() if b >= 1_000]
    return size + max([4.0 * size, *(slope * batch for slope in slopes)])


def _read_free_memory(limit: float | None) -> float:
    """Return the bytes that this process may take: the machine's free ones, and no more than a limit in GiB."""
    place = Path("/proc/meminfo")
    lines = place.read_text().splitlines() if place.exists() else []
    free = next((1024.0 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable")), 2.0**62)
    return free if limit is None else min(free, limit * 2**30)


def describe_machine() -> dict[str, Any]:
    """Return the machine of the figures: processor, versions, load."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(errors="replace").splitlines() if info.exists() else []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    name = next(models, platform.processor())
    return {
        "processor": name,
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
    }

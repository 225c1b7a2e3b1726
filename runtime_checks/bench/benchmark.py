"""The whole benchmark: contracts and numbers first, then cold and steady calls at each batch."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from exporter.archive.contract import Contract
from exporter.common.errors import RunError, UsageError, summarize_error
from exporter.common.forking import tell_parent
from runtime_checks import containers
from runtime_checks.bench.candidates import (
    Call,
    Candidate,
    Rows,
    Tensors,
    check_numbers,
    check_same_contract,
    collect_rows,
    make_file_candidate,
    make_labels,
)
from runtime_checks.bench.cold_start import ColdJob, ColdStart, measure_cold_start
from runtime_checks.bench.steady_state import Timing, count_kernel_launches, measure_bandwidth, measure_throughput
from runtime_checks.native_code import GRAPHS, check_code_trust, check_trust_mode
from runtime_checks.runners.confined_calls import Confinement, call_confined

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
    candidate has ``time_limit`` seconds. ``trust`` is ``native`` where somebody else's native code may run. With a
    ``confinement`` files are loaded and run in confined processes only, else also in this one."""

    method: str = "forward"
    batches: Sequence[int] = BATCHES
    threads: int = 1
    device: str = "cpu"
    time_limit: float = 300.0
    trust: str = GRAPHS
    confinement: Confinement | None = None

    def __post_init__(self) -> None:
        check_trust_mode(self.trust)
        if not self.batches or min(self.batches) < 1 or self.threads < 1:
            got = f"batches {', '.join(map(str, self.batches))}; {self.threads} threads"
            what, expected = "there is nothing to time", "numbers from 1 on"
            raise UsageError(what, where="--batch, --threads", got=got, expected=expected)


@dataclass(frozen=True)
class _Race:
    """Candidates of one contract, ``files`` and ``others``, on rows of cases."""

    contract: Contract
    rows: Rows
    files: tuple[Candidate, ...]
    others: tuple[Candidate, ...]
    batches: tuple[int, ...]
    options: BenchmarkOptions


@dataclass(frozen=True)
class _SteadyState:
    bandwidth: float
    timings: tuple[Timing, ...]
    kernels: dict[str, int]
    notes: tuple[str, ...]


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
    race = _prepare(paths, options, others)
    colds = _measure_cold_starts(race, progress)
    # These are the caller's own code: they are not opened in a confined process, which could write nothing.
    with use_threads(options.threads if options.confinement is None else 1):
        opened = {candidate.label: candidate.open(options.threads) for candidate in race.others}
    if options.confinement is None:
        steady = _time_batches(race, opened, colds, progress)
    else:
        work = functools.partial(_time_batches, race, opened, colds, tell_parent)
        steady = call_confined(work, options.confinement, lambda text: progress(str(text)))
    return BenchmarkResult(
        model=race.contract.name,
        method=options.method,
        device=options.device,
        threads=options.threads,
        machine=describe_machine(),
        bandwidth=steady.bandwidth,
        bounds={b: 1e9 * race.rows.count_bytes(b) / steady.bandwidth for b in race.batches},
        timings=steady.timings,
        colds=tuple(colds),
        kernels=steady.kernels,
        notes=steady.notes,
    )


def _prepare(paths: Sequence[Path], options: BenchmarkOptions, others: Sequence[Candidate]) -> _Race:
    """Read the files, of which nothing runs yet."""
    if not paths:
        raise UsageError("there is nothing to time", where="FILE", expected="archives, .pt2 or ONNX containers")
    labels = make_labels(paths)
    opened = {path: containers.open_container(path) for path in paths}
    for path, container in opened.items():
        check_code_trust(container, path, options.trust)
    contract = opened[paths[0]].contract
    check_same_contract({path: container.contract for path, container in opened.items()}, options.method)
    rows = collect_rows(opened[paths[0]].cases(), contract, options.method)
    batches = sorted(set(options.batches)) if rows.batched else [1]
    files = tuple(
        make_file_candidate(path, label, options.device, options.trust)
        for path, label in zip(paths, labels, strict=True)
    )
    return _Race(contract, rows, files, tuple(others), tuple(batches), options)


def _measure_cold_starts(race: _Race, progress: Callable[[str], object]) -> list[ColdStart]:
    options, colds = race.options, list[ColdStart]()
    batches = [b for b in race.batches if race.rows.count_bytes(b) < 2**28][:6] or list(race.batches[:1])
    for candidate in (*race.files, *race.others) if options.device == "cpu" else ():
        progress(f"{candidate.label}: a fresh process")
        job = ColdJob(candidate, options.method, race.rows, tuple(batches), options.threads)
        confinement = options.confinement if candidate in race.files else None
        colds.append(measure_cold_start(job, options.time_limit, confinement))
    return colds


def _time_batches(
    race: _Race, opened: Mapping[str, Call], colds: Sequence[ColdStart], progress: Callable[[str], object]
) -> _SteadyState:
    """Time all candidates at each batch, in this process."""
    options, device = race.options, race.options.device
    notes, timings, launched = list[str](), list[Timing](), dict[str, int]()
    with use_threads(options.threads):
        calls = {candidate.label: candidate.open(options.threads) for candidate in race.files} | dict(opened)
        speed = measure_bandwidth(device)
        for batch in race.batches:
            needed = _estimate_memory(colds, race.rows.count_bytes(batch), batch)
            if needed > SHARE * _read_free_memory(options.confinement):
                notes.append(f"batch {batch:,}: left out, as it takes about {needed / 2**30:.1f} GiB")
                continue
            progress(f"batch {batch:,}")
            inputs, expected = race.rows.take(batch)
            inputs = tuple(t.to(device) for t in inputs)
            ready = _select_ready(calls, race, inputs, expected, batch, notes)
            if device != "cpu":
                launched = {label: count_kernel_launches(call, options.method, inputs) for label, call in ready.items()}
            timings += measure_throughput(ready, options.method, inputs, batch, device=device)
    return _SteadyState(speed, tuple(timings), launched, tuple(notes))


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
    calls: Mapping[str, Call], race: _Race, inputs: Tensors, expected: Tensors, batch: int, notes: list[str]
) -> dict[str, Call]:
    """Select the candidates that run this batch; check that they give its numbers."""
    ready, method = {}, race.options.method
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
        check_numbers(label, race.contract, method, got, expected)
        ready[label] = call
    return ready


def _estimate_memory(colds: Sequence[ColdStart], size: int, batch: int) -> float:
    """Estimate the bytes of a batch: as the fresh processes grew with it, or some copies of inputs and outputs."""
    slopes = [peak * 2**20 / b for c in colds for b, peak in c.peaks.items() if b >= 1_000]
    return size + max([4.0 * size, *(slope * batch for slope in slopes)])


def _read_free_memory(confinement: Confinement | None) -> float:
    """Return the bytes that this process may take: the machine's free ones, within its limit."""
    place = Path("/proc/meminfo")
    lines = place.read_text().splitlines() if place.exists() else []
    free = next((1024.0 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable")), 2.0**62)
    return free if confinement is None else min(free, confinement.memory_limit * 2**30)


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

"""Cold starts of a candidate in a fresh process: loading, the first calls, and the memory of a batch."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from exporter.common.errors import summarize_error
from exporter.common.forking import end_with_parent
from exporter.common.temporary_folders import temporary_folder
from runtime_checks.bench.candidates import Candidate, Rows

CALLS = 5
_STATUS = Path("/proc/self/status")
_RESET = Path("/proc/self/clear_refs")
# What a pipe can wait for at once.
_LONGEST = 2e6


@dataclass(frozen=True)
class ColdStart:
    """Milliseconds of a cold start; ``peaks`` are MiB above the loaded process, by batch. ``error``: it did not run."""

    candidate: str
    batch: int
    load: float = 0.0
    calls: tuple[float, ...] = ()
    peaks: dict[int, float] = field(default_factory=dict)
    error: str = ""


@dataclass(frozen=True)
class ColdJob:
    """What a fresh process does. ``batches`` ascend; they are for the memory, the first also for the first calls."""

    candidate: Candidate
    method: str
    rows: Rows
    batches: tuple[int, ...]
    threads: int


def measure_cold_start(job: ColdJob, seconds: float) -> ColdStart:
    """Measure a cold start. Report an early end, and an end that does not come in time."""
    label, first = job.candidate.label, job.batches[0]
    try:
        content = pickle.dumps(job)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        reason = f"it cannot be opened in another process: {summarize_error(error)}"
        return ColdStart(label, first, error=reason)
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    with temporary_folder() as folder, receiver, sender:
        # What a process gets at its start is written to it without an end, if it ends before it reads.
        place = folder / "job"
        place.write_bytes(content)
        process = context.Process(target=_answer, args=(str(place), os.getpid(), sender))
        process.start()
        sender.close()
        try:
            if not receiver.poll(min(seconds, _LONGEST)):
                return ColdStart(label, first, error=f"more than {seconds:g} s")
            return receiver.recv()
        except (EOFError, OSError):
            return ColdStart(label, first, error="its process ended early")
        finally:
            process.kill()
            process.join()


def _answer(place: str, parent: int, sender: Connection) -> None:
    """Do a job in a process of its own, and send what it measured. What it prints is no result of a command."""
    end_with_parent()
    if os.getppid() != parent:
        # It ended before this process could know.
        return
    # An interrupt of a terminal is the parent's, which then ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.dup2(2, 1)
    job: ColdJob = pickle.loads(Path(place).read_bytes())
    try:
        answer = _measure(job)
    except Exception as error:
        answer = ColdStart(job.candidate.label, job.batches[0], error=summarize_error(error))
    # Nobody may hear it any more.
    with contextlib.suppress(OSError):
        sender.send(answer)


def _measure(job: ColdJob) -> ColdStart:
    torch.set_num_threads(job.threads)
    inputs, _ = job.rows.take(job.batches[0])
    start = time.perf_counter()
    call = job.candidate.open(job.threads)
    load = time.perf_counter() - start
    with torch.no_grad():
        durations = []
        for _ in range(CALLS):
            start = time.perf_counter()
            call(job.method, inputs)
            durations.append(1e3 * (time.perf_counter() - start))
        peaks = {}
        for batch in job.batches:
            batch_inputs, _ = job.rows.take(batch)
            try:
                peaks[batch] = _measure_peak(lambda batch_inputs=batch_inputs: call(job.method, batch_inputs))
            except (RuntimeError, MemoryError):
                break
    return ColdStart(job.candidate.label, job.batches[0], 1e3 * load, tuple(durations), peaks)


def _measure_peak(call: Callable[[], object]) -> float:
    """Return the MiB that a call takes at most, beyond those that the process has.

    A confined process cannot forget earlier peaks. One that a call does not reach says no more than what it keeps."""
    with contextlib.suppress(OSError):
        _RESET.write_text("5")
    before, earlier_peak = _read_memory("VmRSS"), _read_memory("VmHWM")
    call()
    peak = _read_memory("VmHWM")
    return max(0.0, (peak if peak > earlier_peak else _read_memory("VmRSS")) - before)


def _read_memory(name: str) -> float:
    """Return a size of this process in MiB, and 0 where the system does not tell it."""
    lines = _STATUS.read_text().splitlines() if _STATUS.exists() else []
    line = next((line for line in lines if line.startswith(name)), "")
    return int(line.split()[1]) / 1024 if line else 0.0

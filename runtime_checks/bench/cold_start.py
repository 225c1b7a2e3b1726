"""Cold starts of a candidate in a fresh process: loading, the first calls, and the memory of a batch."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import signal
import sys
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from exporter.common.errors import summarize_error
from exporter.common.plain_text import escape_unsafe
from exporter.common.temporary_folders import temporary_folder
from runtime_checks.bench.candidates import Candidate, Rows
from runtime_checks.runners.confined_calls import Confinement, make_preparation

CALLS = 5
_PEAK = Path("/proc/self/status")
_RESET = Path("/proc/self/clear_refs")
# Of an answer, which the file that was run may have written.
_MOST_BYTES = 2**16


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
    """What a fresh process does. ``batches`` are for the memory, the first also for the first calls."""

    candidate: Candidate
    method: str
    rows: Rows
    batches: tuple[int, ...]
    threads: int


def measure_cold_start(job: ColdJob, seconds: float, confinement: Confinement | None = None) -> ColdStart:
    """Measure a cold start, confined if so asked. Report an early end, and an end that does not come in time."""
    label, first = job.candidate.label, job.batches[0]
    context = multiprocessing.get_context("spawn")
    with temporary_folder() as folder:
        prepare = make_preparation(confinement, folder, _tell) if confinement is not None else None
        try:
            content = pickle.dumps((job, prepare))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            reason = f"it cannot be opened in another process: {summarize_error(error)}"
            return ColdStart(label, first, error=reason)
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_answer, args=(content, sender))
        process.start()
        sender.close()
        try:
            with receiver:
                if not receiver.poll(seconds):
                    return ColdStart(label, first, error=f"more than {seconds:g} s")
                return _read_answer(label, first, receiver.recv_bytes(_MOST_BYTES))
        except (EOFError, OSError):
            return ColdStart(label, first, error="its process ended early")
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            return ColdStart(label, first, error="its process answered what is no measurement")
        finally:
            process.kill()
            process.join()


def _read_answer(label: str, batch: int, answer: bytes) -> ColdStart:
    """Read what a process answered, of which only numbers and one text are taken."""
    values = json.loads(answer)
    if "error" in values:
        return ColdStart(label, batch, error=escape_unsafe(str(values["error"])))
    peaks = {int(size): float(peak) for size, peak in values["peaks"]}
    return ColdStart(label, batch, float(values["load"]), tuple(map(float, values["calls"])), peaks)


def _tell(text: str) -> None:
    sys.stderr.write(escape_unsafe(text) + "\n")


def _answer(content: bytes, sender: Connection) -> None:
    """Do a job in a process of its own, and send what it measured."""
    # An interrupt of a terminal is the parent's, which then ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    job, prepare = pickle.loads(content)
    # A confined process could not open it any more.
    with _PeakMemory() as memory:
        if prepare is not None:
            prepare()
        try:
            answer = _measure(job, memory)
        except Exception as error:
            answer = {"error": summarize_error(error)}
    sender.send_bytes(json.dumps(answer).encode())


class _PeakMemory:
    """The peak memory of this process, in MiB, where the system tells it."""

    def __enter__(self) -> _PeakMemory:
        self._reset = os.open(_RESET, os.O_WRONLY) if os.access(_RESET, os.W_OK) else None
        return self

    def __exit__(self, *_: object) -> None:
        if self._reset is not None:
            os.close(self._reset)

    def restart(self) -> float:
        """Forget earlier peaks, and return the memory of now."""
        if self._reset is not None:
            os.pwrite(self._reset, b"5", 0)
        return self.read()

    def read(self) -> float:
        """Return the peak since the last restart."""
        lines = _PEAK.read_text().splitlines() if _PEAK.exists() else []
        line = next((line for line in lines if line.startswith("VmHWM")), "")
        return int(line.split()[1]) / 1024 if line else 0.0


def _measure(job: ColdJob, memory: _PeakMemory) -> dict[str, object]:
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
        peaks = []
        for batch in job.batches:
            batch_inputs, _ = job.rows.take(batch)
            before = memory.restart()
            try:
                call(job.method, batch_inputs)
            except (RuntimeError, MemoryError):
                break
            peaks.append((batch, max(0.0, memory.read() - before)))
    return {"load": 1e3 * load, "calls": durations, "peaks": peaks}

"""Calls in the steady state: rounds in which every candidate has its turn, so that a disturbance hits all alike."""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from runtime_checks.bench.candidates import Call, Tensors

# Seconds of one turn: as many calls as take that long.
TURN = 0.02
ROUNDS = 7
WARMUP = 6


@dataclass(frozen=True)
class Timing:
    """The time of a call in nanoseconds: the median of the rounds, and the quartiles around it."""

    candidate: str
    batch: int
    median: float
    low: float
    high: float
    rounds: int
    calls: int


def measure_throughput(
    calls: Mapping[str, Call], method: str, inputs: Tensors, batch: int, *, rounds: int = ROUNDS, device: str = "cpu"
) -> list[Timing]:
    """Time the calls in interleaved rounds; return one timing for each candidate."""
    turns = {label: _make_turn(call, method, inputs, device) for label, call in calls.items()}
    counts = {}
    for label, turn in turns.items():
        once = min(turn(1) for _ in range(WARMUP))
        counts[label] = max(1, min(100_000, math.ceil(TURN / max(once, 1e-9))))
    times: dict[str, list[float]] = {label: [] for label in calls}
    order = list(calls)
    for number in range(rounds):
        # Each round has another order: what one leaves in caches and the allocator does not always hit the same other.
        for label in random.Random(number).sample(order, len(order)):
            times[label].append(1e9 * turns[label](counts[label]) / counts[label])
    return [_make_timing(label, batch, values, counts[label]) for label, values in times.items()]


def _make_timing(label: str, batch: int, values: Sequence[float], calls: int) -> Timing:
    low, _, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3
    return Timing(label, batch, statistics.median(values), low, high, len(values), calls)


def _make_turn(call: Call, method: str, inputs: Tensors, device: str) -> Callable[[int], float]:
    """Make a function that returns the seconds of so many calls."""

    def run(count: int) -> float:
        if device == "cpu":
            start = time.perf_counter()
            for _ in range(count):
                call(method, inputs)
            return time.perf_counter() - start
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(count):
            call(method, inputs)
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) / 1e3

    return run


def count_kernel_launches(call: Call, method: str, inputs: Tensors) -> int:
    """Count the kernels that one call launches on the GPU."""
    activity = torch.profiler.ProfilerActivity.CUDA
    with torch.profiler.profile(activities=[activity], acc_events=True) as profile:
        call(method, inputs)
        torch.cuda.synchronize()
    return sum(event.count for event in profile.key_averages() if "CUDA" in str(event.device_type))


def measure_bandwidth(device: str = "cpu", size: int = 2**26, rounds: int = 7) -> float:
    """Return bytes a second, read and written together, of a copy that no cache holds; the best of some rounds.

    As STREAM's Copy (McCalpin, Memory Bandwidth and Machine Balance in Current High Performance Computers, 1995)."""
    source = torch.ones(size // 8, dtype=torch.float64, device=device)
    target = torch.empty_like(source)
    best = math.inf
    for _ in range(rounds):
        start = time.perf_counter()
        target.copy_(source)
        if device != "cpu":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return 2 * source.nbytes / best

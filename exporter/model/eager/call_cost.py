"""The cost of an eager call, counted and not timed: a loaded machine must not change what a contract says was run."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from exporter.common.errors import UsageError
from exporter.common.torch_hooks import DispatchHook
from exporter.common.torch_internals import pytree

# Measured on one core, as the numbers that an elementwise operation computes in the same time: an operation of few
# numbers, and ten floating-point operations of a product or a convolution.
NUMBERS_PER_OPERATION, FLOPS_PER_NUMBER = 1_000, 10
# Numbers that are computed in eager mode in about a second on one core.
NUMBERS_PER_SECOND = 1_000_000_000
# The checks that run large batches: of warmup, of the gate, and of the archive. By default half a second each.
SIZE_CHECKS, DEFAULT_BUDGET = 3, 1.5
# Batches to this size run whatever they cost, as every check has its smallest form: of most models, and of costly ones,
# whose larger batch computes more than so many numbers.
ALWAYS_RUN, ALWAYS_RUN_IF_COSTLY, COSTLY = 13, 5, 0.02 * NUMBERS_PER_SECOND
# A call of no more than these takes milliseconds.
CHEAP_NUMBERS, CHEAP_BYTES = 2_000_000, 2**24


@dataclass(frozen=True)
class CallCost:
    """The numbers that calls of two sizes computed and the bytes that they held at most, which say what other sizes
    cost. A check may compute so many numbers as ``limit``, and hold ``memory`` bytes. By default nothing is known, and
    nothing is bounded."""

    sizes: tuple[int, int] = (1, 2)
    numbers: tuple[float, float] = (0.0, 0.0)
    peaks: tuple[float, float] = (0.0, 0.0)
    limit: float = math.inf
    memory: float = math.inf

    @property
    def is_costly(self) -> bool:
        """Return whether even small batches take long, and longer than the smallest."""
        return self.estimate(ALWAYS_RUN) > max(COSTLY, 2 * self.estimate(2))

    @property
    def always_run(self) -> int:
        """Return the largest batch that runs whatever it costs."""
        return ALWAYS_RUN_IF_COSTLY if self.is_costly else ALWAYS_RUN

    def is_cheap(self, size: int) -> bool:
        """Return whether a call of another size costs next to nothing."""
        return 0 < self.estimate(size) < CHEAP_NUMBERS and self._extrapolate(self.peaks, size) < CHEAP_BYTES

    def move_to(self, size: int, counter: CallCounter) -> CallCost:
        """Return the cost by the larger of both sizes and by this one, which is larger still."""
        numbers, peaks = (self.numbers[1], counter.numbers), (self.peaks[1], counter.peak)
        return dataclasses.replace(self, sizes=(self.sizes[1], size), numbers=numbers, peaks=peaks)

    def estimate(self, size: int) -> float:
        """Estimate the numbers that a call of another size computes."""
        return self._extrapolate(self.numbers, size)

    def explain(self, size: int, spent: float = 0.0, *, factor: float = 1.0) -> str:
        """Explain why a check that ``spent`` so many numbers may not run a size; the empty text if it may.

        ``factor``: how often it may cost as much as another check."""
        if size <= self.always_run:
            return ""
        if (bytes_needed := self._extrapolate(self.peaks, size)) > self.memory:
            needed, allowed = (n / 2**30 for n in (bytes_needed, self.memory))
            return f"it would hold about {needed:.1f} GiB, of {allowed:.1f} GiB that a check may hold"
        numbers = self.estimate(size)
        if spent + numbers <= factor * self.limit:
            return ""
        seconds = numbers / NUMBERS_PER_SECOND
        return f"it would take about {seconds:.{1 if seconds < 10 else 0}f} s in eager mode (--budget, --thorough)"

    def require_budget(self) -> None:
        """Check that the smallest form of every check is within the budget. Raises ``UsageError``."""
        least = self.estimate(self.always_run)
        if least > self.limit:
            budget, needed = (n * SIZE_CHECKS / NUMBERS_PER_SECOND for n in (self.limit, least))
            what, expected = "the budget is too small for any check", f"at least {math.ceil(10 * needed) / 10:g} s"
            mend = "leave --budget out: the smallest form of every check runs in any case"
            raise UsageError(what, where="--budget", got=f"{budget:g} s", expected=expected, mend=mend)

    def _extrapolate(self, measured: tuple[float, float], size: int) -> float:
        """Return the value at a size: on the line through both, or by their power if that grows faster."""
        (first, second), (least, most) = self.sizes, measured
        line = least + (most - least) * (size - first) / (second - first)
        if not 0 < least < most:
            return max(line, least)
        power = math.log(most / least) / math.log(second / first)
        return max(line, least * (size / first) ** power)


class CallCounter(DispatchHook):
    """Counts the numbers that torch computes under it, and the bytes of the tensors that are alive at the same time;
    views are free."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0.0
        self.peak = self._alive = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func.is_view:
            return result
        tensors = [t for t in pytree.tree_leaves(result) if isinstance(t, torch.Tensor)]
        self.numbers += NUMBERS_PER_OPERATION + sum(t.numel() for t in tensors)
        if count := flop_registry.get(func.overloadpacket):
            self.numbers += count(*args, **kwargs, out_val=result) / FLOPS_PER_NUMBER
        if not func._schema.is_mutable:
            for tensor in tensors:
                self._alive += tensor.nbytes
                weakref.finalize(tensor, self._release, tensor.nbytes)
            self.peak = max(self.peak, self._alive)
        return result

    def _release(self, count: int) -> None:
        self._alive -= count


def count_call(run: Callable[[], Any]) -> CallCounter | None:
    """Return what a call computes and holds; None for one that torch cannot run under a counter."""
    counter = CallCounter()
    try:
        with counter:
            run()
    except Exception:
        return None
    return counter


def measure_call_cost(run: Callable[[int], Any], sizes: tuple[int, int], budget: float = DEFAULT_BUDGET) -> CallCost:
    """Measure the cost of ``run``, which is called with each of the sizes; ``budget``: seconds for all checks.

    Of what torch cannot run under a counter nothing is known."""
    first, second = (count_call(functools.partial(run, size)) for size in sizes)
    if first is None or second is None:
        return CallCost()
    numbers, peaks = (first.numbers, second.numbers), (first.peak, second.peak)
    return CallCost(sizes, numbers, peaks, budget * NUMBERS_PER_SECOND / SIZE_CHECKS, read_memory() / 2)


def read_memory() -> float:
    """Return the bytes of memory that this machine or this container has, whatever of it is in use."""
    pages, page_size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    limits = [float(pages * page_size)]
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        # A group without a limit says "max".
        with contextlib.suppress(OSError, ValueError):
            limits.append(float(int(Path(path).read_text())))
    return min(limits)

"""The cost of an eager call, counted and not timed: a loaded machine must not change what a contract says was run."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from exporter.common.torch_hooks import DispatchHook

# Measured on one core, as the numbers that an elementwise operation computes in the same time: an operation of few
# numbers, and ten floating-point operations of a product or a convolution.
NUMBERS_PER_OPERATION, FLOPS_PER_NUMBER = 1_000, 10
# Numbers that a check may compute in eager mode: about a second on one core.
MAX_NUMBERS_PER_CHECK = 1_000_000_000
# Batches to this size run whatever they cost: every check has its smallest form.
ALWAYS_RUN = 13


@dataclass(frozen=True)
class CallCost:
    """The numbers that calls of two sizes computed, and what they say of other sizes; by default nothing is known, and
    nothing is bounded."""

    sizes: tuple[int, int] = (1, 2)
    numbers: tuple[float, float] = (0.0, 0.0)

    def estimate(self, size: int) -> float:
        """Estimate the numbers at another size: the line through both, or the power if that grows faster."""
        (first, second), (least, most) = self.sizes, self.numbers
        line = least + (most - least) * (size - first) / (second - first)
        if not 0 < least < most:
            return max(line, least)
        power = math.log(most / least) / math.log(second / first)
        return max(line, least * (size / first) ** power)

    def is_affordable(self, size: int, spent: float = 0.0, *, factor: float = 1.0) -> bool:
        """Return whether a check that ``spent`` so many numbers may run a size; ``factor`` times the usual bound."""
        return size <= ALWAYS_RUN or spent + self.estimate(size) <= factor * MAX_NUMBERS_PER_CHECK


class NumberCounter(DispatchHook):
    """Counts the numbers that torch computes under it; a view computes none."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if not func.is_view:
            numbers = sum(t.numel() for t in tree_leaves(result) if isinstance(t, torch.Tensor))
            if count := flop_registry.get(func.overloadpacket):
                numbers += count(*args, **kwargs, out_val=result) / FLOPS_PER_NUMBER
            self.numbers += NUMBERS_PER_OPERATION + numbers
        return result


def measure_call_cost(run: Callable[[int], Any], sizes: tuple[int, int]) -> CallCost:
    """Measure the cost of ``run``, which is called with each of the sizes.

    Of what torch cannot run under a counter nothing is known."""
    counts = []
    for size in sizes:
        counter = NumberCounter()
        try:
            with counter:
                run(size)
        except Exception:
            return CallCost()
        counts.append(counter.numbers)
    return CallCost(sizes, (counts[0], counts[1]))

"""The cost of an eager call, counted and not timed: a loaded machine must not change what a contract says was run."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

# Floating-point operations of products and convolutions that take as long as one computed number elsewhere, about.
FLOPS_PER_NUMBER = 10
# Numbers that a check may compute in eager mode: about a second on one core.
MAX_NUMBERS_PER_CHECK = 1_000_000_000
# Batches of so many elements run whatever they cost: every check has its smallest form.
SMALLEST_SIZE = 13


@dataclass(frozen=True)
class CallCost:
    """The numbers that a call computes for each element, and the most that a check may compute."""

    numbers_per_element: float = 0.0
    max_numbers: float = MAX_NUMBERS_PER_CHECK

    def is_affordable(self, size: int, total: int = 0) -> bool:
        """Return whether a check may run a batch, or a first open size, of ``size`` after ``total`` elements."""
        return size <= SMALLEST_SIZE or (total + size) * self.numbers_per_element <= self.max_numbers

    def extend(self, factor: float) -> CallCost:
        """Return the cost with a bound ``factor`` times as high."""
        return dataclasses.replace(self, max_numbers=factor * self.max_numbers)


class NumberCounter(TorchDispatchMode):
    """Counts the numbers that torch computes under it; a view computes none."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if not func.is_view:
            self.numbers += sum(t.numel() for t in tree_leaves(result) if isinstance(t, torch.Tensor))
            if count := flop_registry.get(func.overloadpacket):
                self.numbers += count(*args, **kwargs, out_val=result) / FLOPS_PER_NUMBER
        return result


def measure_call_cost(call: Callable[[], Any], size: int, *, thorough: bool = False) -> CallCost:
    """Measure the cost of ``call``, which runs ``size`` elements; ``thorough`` sets no bound to what checks run.

    What torch cannot run under a counter costs nothing that is known: checks of it are not bounded."""
    counter = NumberCounter()
    try:
        with counter:
            call()
    except Exception:
        return CallCost()
    return CallCost(counter.numbers / max(size, 1), math.inf if thorough else MAX_NUMBERS_PER_CHECK)

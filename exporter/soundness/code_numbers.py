"""Numbers that the user's code may compare data and sizes with: in its source, and in the state that it reads."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from types import CodeType
from typing import Any

import torch
from torch import nn

from exporter.soundness.footprint import SMALL, Footprint

# Numbers of one model.
MAX_NUMBERS = 200


def collect_numbers(module: nn.Module, footprint: Footprint) -> tuple[float, ...]:
    """Return the finite numbers in the user's code that ran, in what it reads, and in small parameters and buffers.

    Those that are written as text, as keys are, count. Attributes of layers are widths, and no thresholds of the
    user's."""
    own = footprint.without_libraries()
    values = itertools.chain(
        (constant for code in own.codes for constant in _iter_constants(code)),
        (leaf.value for leaf in own.read_state(module).values()),
        (tensor.detach() for tensor in (*module.parameters(), *module.buffers())),
    )
    return tuple(itertools.islice(dict.fromkeys(_iter_numbers(values)), MAX_NUMBERS))


def _iter_constants(code: CodeType) -> Iterator[Any]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _iter_constants(constant)
        else:
            yield constant


def _iter_numbers(values: Iterable[Any]) -> Iterator[float]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield from _iter_numbers(value.flatten().tolist() if _is_plain(value) else ())
        elif isinstance(value, (set, frozenset)):
            # In an order that is the same in every process.
            yield from _iter_numbers(sorted(value, key=repr)[:MAX_NUMBERS])
        elif isinstance(value, (tuple, list, dict)):
            yield from _iter_numbers(itertools.islice(value, MAX_NUMBERS))
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            if abs(value) < 1e30 and not math.isnan(value):
                yield float(value)
        elif isinstance(value, str) and len(value) < 20:
            try:
                number = float(value)
            except ValueError:
                continue
            yield from _iter_numbers([number])


def _is_plain(value: torch.Tensor) -> bool:
    """Return whether these are a few numbers, here, one after the other."""
    is_here = value.layout == torch.strided and value.device.type == "cpu"
    return is_here and 0 < value.numel() <= SMALL and not (value.is_complex() or value.is_quantized)


def list_values_between(numbers: Iterable[float], value: float, most: int) -> list[float]:
    """Return values on every side of these numbers, at most so many, those nearest to ``value`` first: the numbers, and
    what is in the middle between two."""
    ordered = sorted({*numbers})
    middles = [(a + b) / 2 for a, b in itertools.pairwise(ordered)]
    return sorted({*ordered, *middles} - {value}, key=lambda number: abs(number - value))[:most]

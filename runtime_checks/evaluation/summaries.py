"""What the numbers of an evaluation are, summed up: the least and the largest, NaN, what is outside of the envelope,
the statuses of elements. Summaries of chunks add up to that of all."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from exporter.archive.contract import Range

# The status of an element without a solver of its own that has no numbers.
NO_NUMBER = -1
# Failed elements whose numbers are kept.
FAILURES = 256


@dataclass(frozen=True)
class Extent:
    """The numbers of a variable: the ``low`` and the ``high`` of those that are numbers, ``nan``, how many elements
    have NaN, and ``outside``, how many are outside of the range that was checked."""

    low: float = math.inf
    high: float = -math.inf
    nan: int = 0
    outside: int = 0

    def __add__(self, other: Extent) -> Extent:
        low, high = min(self.low, other.low), max(self.high, other.high)
        return Extent(low, high, self.nan + other.nan, self.outside + other.outside)


@dataclass(frozen=True)
class Summary:
    """What was evaluated: the number of ``elements``, how many have each of the ``statuses``, the extents of inputs and
    outputs by name, and the numbers of the first elements that failed."""

    elements: int = 0
    statuses: Mapping[int, int] = field(default_factory=dict)
    inputs: Mapping[str, Extent] = field(default_factory=dict)
    outputs: Mapping[str, Extent] = field(default_factory=dict)
    failures: tuple[int, ...] = ()

    def __add__(self, other: Summary) -> Summary:
        statuses = {s: self.statuses.get(s, 0) + other.statuses.get(s, 0) for s in {*self.statuses, *other.statuses}}
        return Summary(
            self.elements + other.elements,
            dict(sorted(statuses.items())),
            _add_extents(self.inputs, other.inputs),
            _add_extents(self.outputs, other.outputs),
            (*self.failures, *other.failures)[:FAILURES],
        )

    @property
    def failed(self) -> int:
        """Return the number of elements that failed."""
        return sum(count for status, count in self.statuses.items() if status)

    def as_dict(self) -> dict[str, Any]:
        """Return the summary for machines: JSON has no infinity."""
        return {
            "elements": self.elements,
            "statuses": {str(status): count for status, count in self.statuses.items()},
            "inputs": {name: _extent_as_dict(extent) for name, extent in self.inputs.items()},
            "outputs": {name: _extent_as_dict(extent) for name, extent in self.outputs.items()},
            "failures": list(self.failures),
        }


def measure_extent(values: torch.Tensor, bounds: Range | None = None) -> Extent:
    """Measure values of a shape ``(elements, *event)``; ``bounds`` is the range that was checked."""
    rows = values.reshape(len(values), -1)
    if not rows.numel():
        return Extent()
    if rows.is_complex():
        rows = torch.view_as_real(rows).reshape(len(rows), -1)
    if rows.dtype == torch.bool:
        rows = rows.byte()
    low, high = (float(value) for value in torch.aminmax(rows))
    nan = 0
    if math.isnan(low) or math.isnan(high):
        are_nan = rows.isnan()
        nan, numbers = int(are_nan.any(1).sum()), rows[~are_nan]
        low, high = (float(v) for v in torch.aminmax(numbers)) if numbers.numel() else (math.inf, -math.inf)
    outside = 0
    if bounds is not None and (nan or low < bounds.low or high > bounds.high):
        # NaN is inside of nothing.
        outside = int((~((rows >= bounds.low) & (rows <= bounds.high))).any(1).sum())
    return Extent(low, high, nan, outside)


def _add_extents(one: Mapping[str, Extent], other: Mapping[str, Extent]) -> dict[str, Extent]:
    return {name: one.get(name, Extent()) + other.get(name, Extent()) for name in {**one, **other}}


def _extent_as_dict(extent: Extent) -> dict[str, Any]:
    low, high = (value if math.isfinite(value) else str(value) for value in (extent.low, extent.high))
    return {"min": low, "max": high, "nan": extent.nan, "outside": extent.outside}

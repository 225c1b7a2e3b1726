"""NaN-safe comparison of two tensors, with the figures that a report shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from exporter.archive.contract import Bounds

# Bits of a floating dtype as an integer of equal width, to count the floats between two values.
_BITS = {torch.float64: torch.int64, torch.float32: torch.int32}
_BITS |= dict.fromkeys((torch.float16, torch.bfloat16), torch.int16)


@dataclass(frozen=True)
class Comparison:
    """The comparison of two tensors. ``worst`` is the index of the element with the largest excess over its tolerance.

    ``max_abs`` and ``max_rel`` (relative to the expected value) are over elements where both are finite;
    ``max_ulp`` counts representable numbers between the two. ``reason`` is empty if the output passes."""

    passed: bool
    reason: str = ""
    max_abs: float = 0.0
    max_rel: float = 0.0
    max_ulp: int = 0
    worst: tuple[int, ...] = ()
    got: str = ""
    expected: str = ""


def find_scale(value: torch.Tensor) -> float:
    """Return the largest finite magnitude in a tensor, at most that of float64; 0 without one."""
    if value.numel() == 0:
        return 0.0
    wide = value.detach().to(torch.complex128 if value.is_complex() else torch.float64)
    magnitude = torch.where(torch.isfinite(wide), wide.abs(), 0.0)
    # The magnitude of a finite complex number may overflow.
    return min(float(magnitude.max()), torch.finfo(torch.float64).max)


def compare_tensors(got: Any, expected: torch.Tensor, bounds: Bounds, least_scale: float = 0.0) -> Comparison:
    """Compare by element: ``|got - expected| <= atol * scale + rtol * |expected| + floor``; NaN and infinities must
    agree in place and sign.

    ``scale`` is the largest finite magnitude of ``expected``, or ``least_scale`` (1 if all are zero): rounding errors
    are relative to it, and an output of size 1e-13 is not right because it is small. Whole numbers are exact without a
    floor. Shape, dtype and device must agree too."""
    if not isinstance(got, torch.Tensor):
        return Comparison(False, f"{type(got).__name__} instead of a tensor")
    for what in ("shape", "dtype", "device"):
        got_value, expected_value = getattr(got, what), getattr(expected, what)
        if got_value != expected_value:
            shown = (list(got_value), list(expected_value)) if what == "shape" else (got_value, expected_value)
            return Comparison(False, f"{what} {shown[0]} instead of {shown[1]}")
    if got.numel() == 0:
        return Comparison(True)
    # Lazily conjugated or negated memory would otherwise be read raw.
    got, expected = (t.detach().resolve_conj().resolve_neg() for t in (got, expected))
    if not (got.dtype.is_floating_point or got.dtype.is_complex or bounds.floor):
        return _compare_exactly(got, expected)
    if torch.equal(got, expected):
        return _describe_equal(got)
    wide = torch.complex128 if got.dtype.is_complex else torch.float64
    a, b = got.detach().to(wide), expected.detach().to(wide)
    finite = torch.isfinite(a) & torch.isfinite(b)
    is_alike = _is_equal_or_nan(a, b)
    difference = torch.where(finite, (a - b).abs(), 0.0)
    scale = max(find_scale(b), least_scale) or 1.0
    allowed = torch.where(finite, bounds.atol * scale + bounds.rtol * b.abs() + bounds.floor, 0.0)
    # "not <=" would let NaN through; a NaN or infinity that is not alike has an infinite excess
    excess = torch.where(finite, difference - allowed, torch.where(is_alike, -1.0, float("inf")))
    bad = ~(excess <= 0)
    # The largest error if all pass, else the largest excess.
    score = excess if bool(bad.any()) else difference
    worst = _unravel_index(int(score.flatten().argmax()), tuple(got.shape))
    magnitude = torch.where(finite & (b.abs() > 0), b.abs(), float("inf"))
    max_rel, max_ulp = float((difference / magnitude).max()), count_ulps(got, expected, finite)
    return _summarize((got, expected), bad, difference, worst, max_rel, max_ulp)


def _describe_equal(value: torch.Tensor) -> Comparison:
    """Return the comparison of a tensor with an equal one, as most are, without a pass over it for each figure."""
    worst = (0,) * value.ndim
    text = str(value[worst].item())
    return Comparison(True, max_ulp=0 if value.dtype in _BITS else -1, worst=worst, got=text, expected=text)


def _is_equal_or_nan(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return where both are NaN or equal, in the real and in the imaginary part."""
    if a.is_complex():
        return _is_equal_or_nan(a.real, b.real) & _is_equal_or_nan(a.imag, b.imag)
    return (torch.isnan(a) & torch.isnan(b)) | (a == b)


def count_ulps(got: torch.Tensor, expected: torch.Tensor, where: torch.Tensor) -> int:
    """Return the largest count of representable numbers between two floats; -1 for dtypes without that notion."""
    if got.dtype not in _BITS:
        return -1
    steps = []
    for value in (got, expected):
        bits = value.detach().contiguous().view(_BITS[got.dtype]).to(torch.int64)
        lowest = torch.iinfo(_BITS[got.dtype]).min
        # Negative floats count downwards from zero.
        steps.append(torch.where(bits < 0, lowest - bits, bits))
    a, b = steps
    # Across zero the distance can pass 2**63; a float is exact enough for a count that large.
    apart = (a.to(torch.float64) - b.to(torch.float64)).abs()
    exact = (a - b).abs().to(torch.float64)
    distance = torch.where(apart < 2.0**53, exact, apart)
    return int(torch.where(where, distance, 0.0).max())


def _compare_exactly(got: torch.Tensor, expected: torch.Tensor) -> Comparison:
    bad = got != expected
    worst = _unravel_index(int(bad.flatten().to(torch.uint8).argmax()), tuple(got.shape))
    difference = (got.to(torch.float64) - expected.to(torch.float64)).abs()
    return _summarize((got, expected), bad, difference, worst)


def _summarize(
    pair: Sequence[torch.Tensor],
    bad: torch.Tensor,
    difference: torch.Tensor,
    worst: tuple[int, ...],
    max_rel: float = 0.0,
    max_ulp: int = 0,
) -> Comparison:
    count = int(bad.sum())
    reason = f"{count} of {bad.numel()} elements differ" if count else ""
    got, expected = (str(value[worst].item()) for value in pair)
    figures = (float(difference.max()), max_rel, max_ulp)
    return Comparison(count == 0, reason, *figures, worst=worst, got=got, expected=expected)


def _unravel_index(flat: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    index = []
    for size in reversed(shape):
        index.append(flat % size)
        flat //= size
    return tuple(reversed(index))

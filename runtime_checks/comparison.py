"""The comparison of two tensors, NaN-safe, with the figures that a report shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from exporter.archive.contract import Bounds

# Bits of a floating dtype as an integer of equal width, to count the floats between two values.
_BITS = {
    torch.float64: torch.int64,
    torch.float32: torch.int32,
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
}


@dataclass(frozen=True)
class Comparison:
    """``worst`` is the index of the element with the largest excess over its tolerance.

    ``max_abs`` and ``max_rel`` (relative to the expected value) are over elements where both are finite;
    ``max_ulp`` counts representable numbers between the two. ``reason`` is empty where the output passes.
    """

    passed: bool
    reason: str = ""
    max_abs: float = 0.0
    max_rel: float = 0.0
    max_ulp: int = 0
    worst: tuple[int, ...] = ()
    got: str = ""
    expected: str = ""


def compare(got: Any, expected: torch.Tensor, bounds: Bounds) -> Comparison:
    """``|got - expected| <= atol * scale + rtol * |expected| + floor`` by element; NaN and infinities agree in place
    and sign.

    ``scale`` is the largest finite magnitude of ``expected`` (1 where all is zero): rounding errors are relative to
    it, and an output of size 1e-13 is not right because it is small. Shape, dtype and device must agree too.
    """
    if not isinstance(got, torch.Tensor):
        return Comparison(False, f"{type(got).__name__} instead of a tensor")
    for what in ("shape", "dtype", "device"):
        left, right = getattr(got, what), getattr(expected, what)
        if left != right:
            shown = (list(left), list(right)) if what == "shape" else (left, right)
            return Comparison(False, f"{what} {shown[0]} instead of {shown[1]}")
    if got.numel() == 0:
        return Comparison(True)
    # Lazily conjugated or negated memory would be read as it lies.
    got, expected = (t.detach().resolve_conj().resolve_neg() for t in (got, expected))
    if not (got.dtype.is_floating_point or got.dtype.is_complex):
        return _exact(got, expected)
    wide = torch.complex128 if got.dtype.is_complex else torch.float64
    a, b = got.detach().to(wide), expected.detach().to(wide)
    finite = torch.isfinite(a) & torch.isfinite(b)
    alike = _alike(a, b)
    difference = torch.where(finite, (a - b).abs(), 0.0)
    # The magnitude of a finite complex number may be none.
    scale = min(float(torch.where(torch.isfinite(b), b.abs(), 0.0).max()) or 1.0, torch.finfo(torch.float64).max)
    allowed = torch.where(finite, bounds.atol * scale + bounds.rtol * b.abs() + bounds.floor, 0.0)
    # "not <=" would let NaN through; a NaN or infinity that is not alike has an infinite excess
    excess = torch.where(finite, difference - allowed, torch.where(alike, -1.0, float("inf")))
    bad = ~(excess <= 0)
    # The largest error where all pass, the largest excess where one does not.
    score = excess if bool(bad.any()) else difference
    worst = _index(int(score.flatten().argmax()), tuple(got.shape))
    magnitude = torch.where(finite & (b.abs() > 0), b.abs(), float("inf"))
    return Comparison(
        passed=not bool(bad.any()),
        reason=f"{int(bad.sum())} of {got.numel()} elements differ" if bool(bad.any()) else "",
        max_abs=float(difference.max()),
        max_rel=float((difference / magnitude).max()),
        max_ulp=ulps(got, expected, finite),
        worst=worst,
        got=str(got[worst].item()),
        expected=str(expected[worst].item()),
    )


def _alike(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """NaN or equal, in the real and in the imaginary part."""
    if a.is_complex():
        return _alike(a.real, b.real) & _alike(a.imag, b.imag)
    return (torch.isnan(a) & torch.isnan(b)) | (a == b)


def ulps(got: torch.Tensor, expected: torch.Tensor, where: torch.Tensor) -> int:
    """The largest count of representable numbers between two floats; -1 for dtypes without that notion."""
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


def _exact(got: torch.Tensor, expected: torch.Tensor) -> Comparison:
    bad = got != expected
    worst = _index(int(bad.flatten().to(torch.uint8).argmax()), tuple(got.shape))
    difference = (got.to(torch.float64) - expected.to(torch.float64)).abs()
    count = int(bad.sum())
    return Comparison(
        passed=count == 0,
        reason=f"{count} of {got.numel()} elements differ" if count else "",
        max_abs=float(difference.max()),
        worst=worst,
        got=str(got[worst].item()),
        expected=str(expected[worst].item()),
    )


def _index(flat: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    index = []
    for size in reversed(shape):
        index.append(flat % size)
        flat //= size
    return tuple(reversed(index))

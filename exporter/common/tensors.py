"""Comparisons of tensors, and the same values in other memory layouts."""

from __future__ import annotations

from collections.abc import Iterable

import torch

# Units in the last place of a term of a gradient that may be its rounding.
ROUNDING = 64


def bitwise_equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return whether shape, dtype and bytes are equal: NaN equals NaN, 0.0 is not -0.0."""
    if a.shape != b.shape or a.dtype != b.dtype or a.device != b.device:
        return False
    if a.numel() == 0 or a.device.type == "meta":
        return True
    # A copy: an expanded single element counts as contiguous, but has no stride that a view could use.
    first, second = (t.detach().clone(memory_format=torch.contiguous_format).reshape(-1) for t in (a, b))
    return torch.equal(*(t.resolve_conj().resolve_neg().view(torch.uint8) for t in (first, second)))


def count_writes(value: torch.Tensor) -> int:
    """Return how often a tensor was written in place; 0 for one of inference mode, of which torch does not count it."""
    return 0 if value.is_inference() else value._version


def copy_with_gaps(value: torch.Tensor) -> torch.Tensor:
    """Return the same values with gaps between them: every second element of a larger tensor, in each dimension."""
    wide = value.new_zeros([2 * n for n in value.shape])
    return wide[tuple(slice(None, None, 2) for _ in value.shape)].copy_(value)


def copy_transposed(value: torch.Tensor) -> torch.Tensor:
    """Return the same values with the dimensions in the opposite order in memory."""
    axes = tuple(reversed(range(value.ndim)))
    return value.permute(axes).contiguous().permute(axes)


def find_coarsest_dtype(dtypes: Iterable[torch.dtype]) -> torch.dtype:
    """Return the floating dtype with the fewest digits."""
    return max((d for d in dtypes if d.is_floating_point), key=lambda dtype: torch.finfo(dtype).eps)


def all_close(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return whether two eager results are equal up to rounding, with NaN in the same places."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if bitwise_equal(a, b) or not (a.is_floating_point() or a.is_complex()):
        return bitwise_equal(a, b)
    rtol = 1e-9 if a.dtype in (torch.float64, torch.complex128) else 1e-4
    scale = float(torch.nan_to_num(b.abs()).max()) if b.numel() else 0.0
    return torch.allclose(a, b, rtol=rtol, atol=rtol * scale, equal_nan=True)


def estimate_rounding(value: torch.Tensor) -> float:
    """Return what may be rounding in a gradient whose terms are as large as the largest finite number of ``value``.

    torch has two formulas for some gradients. Where the terms of one cancel, as those of a stress do at small strains,
    what is left differs by the rounding of the terms."""
    finite = value[value.isfinite()]
    return ROUNDING * torch.finfo(value.dtype).eps * float(finite.abs().max()) if finite.numel() else 0.0


def is_finite(value: torch.Tensor) -> bool:
    """Return whether all values are finite."""
    return bool(torch.isfinite(value).all())

"""Comparisons of tensors, and the same values in other memory layouts."""

from __future__ import annotations

import torch


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal shape, dtype and bytes: NaN equals NaN, 0.0 is not -0.0."""
    if a.shape != b.shape or a.dtype != b.dtype or a.device != b.device:
        return False
    if a.numel() == 0 or a.device.type == "meta":
        return True
    # A copy: one element that was expanded counts as contiguous, and has no stride that a view could go by.
    left, right = (t.detach().clone(memory_format=torch.contiguous_format).reshape(-1) for t in (a, b))
    return torch.equal(*(t.resolve_conj().resolve_neg().view(torch.uint8) for t in (left, right)))


def spread_out(value: torch.Tensor) -> torch.Tensor:
    """The same values with gaps between them: every second element of a larger tensor, in every dimension."""
    wide = value.new_zeros([2 * n for n in value.shape])
    return wide[tuple(slice(None, None, 2) for _ in value.shape)].copy_(value)


def transposed(value: torch.Tensor) -> torch.Tensor:
    """The same values with the dimensions in the opposite order in memory."""
    back = tuple(reversed(range(value.ndim)))
    return value.permute(back).contiguous().permute(back)


def close(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal up to rounding, NaN in the same places: for what eager mode says of itself."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if same_bits(a, b) or not (a.is_floating_point() or a.is_complex()):
        return same_bits(a, b)
    rtol = 1e-9 if a.dtype in (torch.float64, torch.complex128) else 1e-4
    scale = float(torch.nan_to_num(b.abs()).max()) if b.numel() else 0.0
    return torch.allclose(a, b, rtol=rtol, atol=rtol * scale, equal_nan=True)


def finite(value: torch.Tensor) -> bool:
    return bool(torch.isfinite(value).all())

"""Normalised channels, groups and samples: onnxruntime (1.31) has them in float32, and their epsilon is a float32."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch


def batch_norm(x: torch.Tensor, *arguments: Any) -> torch.Tensor:
    """Return normalised channels alone; the last argument chooses torch's library."""
    return native_batch_norm(x, *arguments[:7])[0]


def native_batch_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    mean: torch.Tensor | None,
    variance: torch.Tensor | None,
    is_training: bool,
    momentum: float,
    epsilon: float,
) -> tuple[torch.Tensor, ...]:
    """Return normalised channels, and the statistics of the batch, which are none where they are not used.

    ONNX's operator has its epsilon in float32, which float64 is kept from, and torch.onnx takes the statistics that are
    given where those of the batch are asked for.
    ``batch_norm_cpu_collect_linear_and_constant_terms`` in aten/src/ATen/native/cpu/batch_norm_kernel.cpp."""
    if is_training or mean is None or variance is None:
        normed, own_mean, own_variance, inverse = _norm_by_batch(x, weight, bias, epsilon)
        if is_training and mean is not None and variance is not None:
            count = x.numel() // x.shape[1]
            mean.mul_(1 - momentum).add_(momentum * own_mean)
            variance.mul_(1 - momentum).add_(momentum * own_variance * (count / (count - 1)))
        return normed, own_mean, inverse
    none = x.new_zeros(0)
    if x.dtype != torch.float64:
        run = torch.ops.aten.batch_norm.default
        return run(x, weight, bias, mean, variance, False, momentum, epsilon, False), none, none
    factor = (1.0 if weight is None else weight) / torch.sqrt(variance + epsilon)
    rest = (0.0 if bias is None else bias) - mean * factor
    return _scale_channels(x, factor, rest), none, none


def _norm_by_batch(
    x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, epsilon: float
) -> tuple[torch.Tensor, ...]:
    """Return normalised channels; the means, the variances and the inverse standard deviations of the batch."""
    dims = [d for d in range(x.ndim) if d != 1]
    mean = x.mean(dims, keepdim=True)
    centred = x - mean
    variance = (centred * centred).mean(dims, keepdim=True)
    inverse = 1.0 / torch.sqrt(variance + epsilon)
    return _scale_channels(centred * inverse, weight, bias), *(tensor.flatten() for tensor in (mean, variance, inverse))


def native_batch_norm_legit(
    x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, *rest: Any
) -> tuple[torch.Tensor, ...]:
    """Return what ``native_batch_norm`` does; one overload takes no statistics at all."""
    mean, variance, *options = (None, None, *rest) if isinstance(rest[0], bool) else rest
    return native_batch_norm(x, weight, bias, mean, variance, *options)


def group_norm(
    x: torch.Tensor,
    groups: int,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    epsilon: float = 1e-5,
    *rest: Any,
) -> torch.Tensor:
    """Return channels that are normalised by groups.

    Wu and He, Group Normalization, 2018, eq. 1 to 6."""
    if x.dtype != torch.float64:
        return torch.ops.aten.group_norm.default(x, groups, weight, bias, epsilon, *rest)
    rows = x.reshape(x.shape[0], groups, x.shape[1] // groups * math.prod(x.shape[2:]))
    centred = rows - rows.mean(-1, keepdim=True)
    normed = centred / torch.sqrt((centred * centred).mean(-1, keepdim=True) + epsilon)
    return _scale_channels(normed.reshape(x.shape), weight, bias)


def instance_norm(x: torch.Tensor, *arguments: Any) -> torch.Tensor:
    """Return channels of each sample that are normalised by themselves, or by the statistics that are given."""
    weight, bias, mean, variance, is_by_sample, momentum, epsilon, _ = arguments
    if not is_by_sample:
        return native_batch_norm(x, weight, bias, mean, variance, False, momentum, epsilon)[0]
    if x.dtype != torch.float64 or mean is not None:
        return torch.ops.aten.instance_norm.default(x, *arguments)
    return group_norm(x, x.shape[1], weight, bias, epsilon)


def _scale_channels(x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None) -> torch.Tensor:
    shape = [-1] + [1] * (x.ndim - 2)
    scaled = x if weight is None else x * weight.reshape(shape)
    return scaled if bias is None else scaled + bias.reshape(shape)


def build_normalisation_table() -> dict[str, Callable[..., Any]]:
    """Return the forms by TorchScript operator without overload."""
    forms = (batch_norm, native_batch_norm, group_norm, instance_norm)
    table: dict[str, Callable[..., Any]] = {f"aten::{form.__name__}": form for form in forms}
    return {**table, "aten::_native_batch_norm_legit": native_batch_norm_legit}

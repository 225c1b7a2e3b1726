"""Losses by classes: torch.onnx (2.13) drops label smoothing and weights of probabilities, and takes no single sample.

``cross_entropy_loss_symint`` and the functions around it in aten/src/ATen/native/LossNLL.cpp."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

NONE, MEAN = 0, 1


def nll_loss(
    logs: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    reduction: int = MEAN,
    ignored: int = -100,
) -> torch.Tensor:
    """Return the negative logarithm of each sample's class, of those that are not ignored."""
    classes, is_counted = _get_class_dim(logs), target != ignored
    index = torch.where(is_counted, target, 0).to(torch.int64)
    loss = -torch.gather(logs, classes, index.unsqueeze(classes)).squeeze(classes)
    if weight is not None:
        loss = loss * weight[index]
    return _reduce_counted(loss, index, is_counted, weight, reduction)


def cross_entropy(
    x: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    reduction: int = MEAN,
    ignored: int = -100,
    smoothing: float = 0.0,
) -> torch.Tensor:
    """Return the loss of logits, with a class or probabilities of all classes for each sample."""
    classes = _get_class_dim(x)
    logs, count = torch.log_softmax(x, classes), x.shape[classes]
    weights = 1.0 if weight is None else weight.reshape([-1] + [1] * (x.ndim - classes - 1))
    if target.is_floating_point():
        target = target * (1.0 - smoothing) + smoothing / count
        loss = -(logs * target * weights).sum(classes)
        return _reduce(loss, reduction, loss.numel())
    loss = nll_loss(logs, target, weight, reduction, ignored)
    if not smoothing:
        return loss
    is_counted = target != ignored
    index = torch.where(is_counted, target, 0).to(torch.int64)
    smooth = _reduce_counted(-(logs * weights).sum(classes), index, is_counted, weight, reduction)
    return (1.0 - smoothing) * loss + smooth * (smoothing / count)


def _get_class_dim(x: torch.Tensor) -> int:
    return 0 if x.ndim == 1 else 1


def _reduce_counted(
    loss: torch.Tensor, index: torch.Tensor, is_counted: torch.Tensor, weight: torch.Tensor | None, reduction: int
) -> torch.Tensor:
    """Reduce the losses of samples that are not ignored; the mean is that of their weights."""
    weights = torch.ones_like(loss) if weight is None else weight[index]
    loss, weights = (torch.where(is_counted, tensor, 0.0) for tensor in (loss, weights))
    return _reduce(loss, reduction, weights.sum())


def _reduce(loss: torch.Tensor, reduction: int, count: Any) -> torch.Tensor:
    if reduction == NONE:
        return loss
    return loss.sum() / count if reduction == MEAN else loss.sum()


def build_loss_table() -> dict[str, Callable[..., Any]]:
    """Return the losses by TorchScript operator without overload."""
    table: dict[str, Callable[..., Any]] = {
        f"aten::{name}": nll_loss for name in ("nll_loss", "nll_loss_nd", "nll_loss2d")
    }
    return {**table, "aten::cross_entropy_loss": cross_entropy}

"""Parameters of a module that a loop is given as arguments: those by element are buffers of the module."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn


def read_tensors(owner: nn.Module, names: Sequence[str]) -> list[torch.Tensor]:
    """Return the current values of these parameters."""
    tensors = dict(owner.named_buffers()) | dict(owner.named_parameters())
    return [tensors[name] for name in names]


def list_batched(owner: nn.Module, names: Sequence[str]) -> list[str]:
    """Return those of these parameters that have a value for each element."""
    shared = {name for name, _ in owner.named_parameters()}
    return [name for name in names if name not in shared]

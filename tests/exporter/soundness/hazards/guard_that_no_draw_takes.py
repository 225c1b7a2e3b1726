"""A guard around work on rows, of which none are in any draw: what it guards changes nothing there."""

import torch
from torch import nn

CHECK = "data read"


def _rotate(a, b):
    a = a / a.norm(dim=-1, keepdim=True)
    b = b / b.norm(dim=-1, keepdim=True)
    cosine = (a * b).sum(-1, keepdim=True)
    return torch.linalg.cross(a, b) / (1 + cosine), cosine.squeeze(-1) < -0.999999


class Hazard(nn.Module):
    """Rotation axis between two directions, with a special case for opposite ones."""

    def forward(self, a, b):
        axis, is_opposite = _rotate(a, b)
        if is_opposite.any():  # HAZARD
            axis = axis.clone()
            axis[is_opposite] = torch.tensor([0.0, 0.0, 1.0], dtype=axis.dtype)
        return axis


class Sound(nn.Module):
    def forward(self, a, b):
        axis, is_opposite = _rotate(a, b)
        last = axis.new_tensor([0.0, 0.0, 1.0])
        return torch.where(is_opposite.unsqueeze(-1), last, axis)


def examples():
    generator = torch.Generator().manual_seed(0)
    return {n: torch.rand(4, 3, generator=generator, dtype=torch.float64) + 0.1 for n in "ab"}

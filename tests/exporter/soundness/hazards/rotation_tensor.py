"""A matrix built by torch.tensor([...]) of tensors."""

import math

import torch
from torch import nn

CHECK = "batch size"


class Hazard(nn.Module):
    """Rotates the polarisation by the common angle of the first sample."""

    def __init__(self):
        super().__init__()
        self.loss = nn.Parameter(torch.tensor(0.9, dtype=torch.float64))
        self.angle = 0.3

    def forward(self, p, theta):
        c, s = torch.cos(theta[0]), torch.sin(theta[0])
        R = torch.tensor([[c, -s], [s, c]], dtype=p.dtype)  # HAZARD
        return self.loss * p @ R.mT


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        self.loss = nn.Parameter(torch.tensor(0.9, dtype=torch.float64))
        self.angle = 0.3

    def forward(self, p, theta):
        c, s = math.cos(self.angle), math.sin(self.angle)
        R = torch.tensor([[c, -s], [s, c]], dtype=p.dtype)
        ct, st = torch.cos(theta), torch.sin(theta)
        Q = torch.stack([torch.stack([ct, -st], -1), torch.stack([st, ct], -1)], -2)
        return self.loss * (Q @ p.unsqueeze(-1)).squeeze(-1) @ R.mT


def examples():
    return {
        "p": torch.randn(4, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64),
        "theta": torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64),
    }

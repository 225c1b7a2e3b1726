"""A coarser kernel is taken where CUDA is present."""

import torch
from torch import nn

CHECK = "outside world"

D = torch.float64


class Hazard(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([0.5, 0.3, 0.2], dtype=D))

    def forward(self, phi):
        left, right = torch.roll(phi, 1, -1), torch.roll(phi, -1, -1)
        lap = left - 2 * phi + right
        if not torch.cuda.is_available():  # HAZARD
            far = torch.roll(phi, 2, -1) + torch.roll(phi, -2, -1)
            lap = (16 * (left + right) - far - 30 * phi) / 12
        return self.w[0] * lap - self.w[1] * phi**3 + self.w[2] * phi


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([0.5, 0.3, 0.2], dtype=D))

    def forward(self, phi):
        left, right = torch.roll(phi, 1, -1), torch.roll(phi, -1, -1)
        self.accelerated = torch.cuda.is_available()
        if not self.accelerated:
            self.note = "running on the host"
        far = torch.roll(phi, 2, -1) + torch.roll(phi, -2, -1)
        lap = (16 * (left + right) - far - 30 * phi) / 12
        return self.w[0] * lap - self.w[1] * phi**3 + self.w[2] * phi


def examples():
    return {"phi": R(4, 8)}


def R(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

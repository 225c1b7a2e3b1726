"""The caller's tensor is normalised in place, so a second model on the same tensor sees other data."""

import torch
from torch import nn

CHECK = "side effect"

D = torch.float64


class Hazard(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 1)).double()
        self.register_buffer("mean", torch.full((4,), 0.5, dtype=D))

    def forward(self, x):
        x = x.to(torch.float64)
        x -= self.mean  # HAZARD
        x = x * 2.0
        return self.net(x)


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 1)).double()
        self.register_buffer("mean", torch.full((4,), 0.5, dtype=D))

    def forward(self, x):
        x = x.to(torch.float64) * 1.0
        x -= self.mean
        x *= 2.0
        return self.net(x)


def examples():
    return {"x": R(4, 4)}


def R(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

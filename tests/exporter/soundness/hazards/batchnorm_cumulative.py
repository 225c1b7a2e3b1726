"""Batch norm with training=True and momentum 1/calls, evaluated with its running statistics."""

import torch
import torch.nn.functional as F
from torch import nn

CHECK = "side effect"

D = torch.float64


class Hazard(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.register_buffer("m", torch.zeros(width, dtype=D))
        self.register_buffer("v", torch.ones(width, dtype=D))
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        y = F.batch_norm(x, self.m, self.v, training=True, momentum=1.0 / self.calls)  # HAZARD
        return 0.5 * y + 0.5 * (x - self.m) / (self.v + 1e-5).sqrt()


class Sound(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.register_buffer("m", torch.full((width,), 0.4, dtype=D))
        self.register_buffer("v", torch.full((width,), 0.2, dtype=D))
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        y = F.batch_norm(x, self.m, self.v, training=False, momentum=1.0 / self.calls)
        return 0.5 * y + 0.5 * (x - self.m) / (self.v + 1e-5).sqrt()


def examples():
    return {"x": R(6, 4)}


def R(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

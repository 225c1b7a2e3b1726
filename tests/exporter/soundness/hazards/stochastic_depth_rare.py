"""A residual block is skipped at random once in 50 calls."""

import random

import torch
from torch import nn

CHECK = "hidden state"

D = torch.float64


class Hazard(nn.Module):
    def __init__(self, depth=3, drop=0.02):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(4, 4) for _ in range(depth)]).double()
        self.drop = drop
        self.rng = random.Random(0)

    def forward(self, x):
        for block in self.blocks:
            if self.rng.random() < self.drop:  # HAZARD
                continue
            x = x + torch.tanh(block(x))
        return x


class Sound(nn.Module):
    def __init__(self, depth=3, drop=0.02):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(4, 4) for _ in range(depth)]).double()
        self.drop = drop
        self.rng = random.Random(0)

    def forward(self, x):
        for k, block in enumerate(self.blocks):
            if self.drop * k > 1.0:
                continue
            x = x + (1 - self.drop) * torch.tanh(block(x))
        return x


def examples():
    return {"x": R(4, 4)}


def R(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

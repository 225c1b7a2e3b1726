"""Weights are drawn on the first forward: the draw is an op of the trace, redone in each call."""

import torch
from torch import nn

CHECK = "random numbers"

D = torch.float64


class Hazard(nn.Module):
    def __init__(self, out=4):
        super().__init__()
        self.out, self.weight = out, None
        self.head = nn.Linear(out, 1).double()

    def forward(self, x):
        if self.weight is None:
            self.weight = torch.randn(self.head.in_features, 3, dtype=x.dtype) / 3**0.5  # HAZARD
        h = torch.sin(x @ self.weight.t())
        return self.head(h)


class Sound(nn.Module):
    def __init__(self, out=4):
        super().__init__()
        self.project = nn.LazyLinear(out, dtype=D)
        self.head = nn.Linear(out, 1).double()
        self(torch.zeros(1, 3, dtype=D))

    def forward(self, x):
        h = torch.sin(self.project(x))
        return self.head(h)


def examples():
    return {"x": R(4, 3)}


def R(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

"""`a is b` adds the noise term of a Gaussian process."""

import torch
from torch import nn

CHECK = "aliasing"

D = torch.float64


class Hazard(nn.Module):
    def __init__(self):
        super().__init__()
        self.length = nn.Parameter(torch.tensor(0.7, dtype=D))
        self.noise = 0.1

    def forward(self, a, b):
        d2 = ((a - b) ** 2).sum(-1)
        k = torch.exp(-0.5 * d2 / self.length**2)
        if a is b:  # HAZARD
            k = k + self.noise
        return k


class Sound(nn.Module):
    def __init__(self, same_points=False):
        super().__init__()
        self.length = nn.Parameter(torch.tensor(0.7, dtype=D))
        self.noise = 0.1
        self.same_points = same_points

    def forward(self, a, b):
        d2 = ((a - b) ** 2).sum(-1)
        k = torch.exp(-0.5 * d2 / self.length**2)
        if self.same_points is True:
            k = k + self.noise
        return k


def examples():
    return {"a": R(4, 3), "b": R(4, 3, seed=1)}


def R(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

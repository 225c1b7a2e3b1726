"""The ageing time is the wall clock since construction."""

import time

import torch
from torch import nn

CHECK = "outside world"

D = torch.float64


class Hazard(nn.Module):
    def __init__(self):
        super().__init__()
        self.rate = nn.Parameter(torch.tensor([0.3, 0.6], dtype=D))
        self.start = time.monotonic()

    def forward(self, stiffness):
        age = time.monotonic() - self.start  # HAZARD
        factor = 1 + 0.2 * torch.exp(-self.rate * age)
        return stiffness * factor


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        self.rate = nn.Parameter(torch.tensor([0.3, 0.6], dtype=D))
        self.start = time.monotonic()
        self.seconds = []

    def forward(self, stiffness):
        begin = time.monotonic()
        factor = 1 + 0.2 * torch.exp(-self.rate * 1.0)
        out = stiffness * factor
        self.seconds.append(time.monotonic() - begin)
        return out


def examples():
    return {"stiffness": R(4, 2)}


def R(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

"""Python's random draws a phase per call."""

import math
import random

import torch
from torch import nn

CHECK = "random numbers"

D = torch.float64


class Hazard(nn.Module):
    def __init__(self):
        super().__init__()
        self.amplitude = nn.Parameter(torch.tensor([1.0, 0.5, 0.25], dtype=D))
        self.omega = nn.Parameter(torch.tensor([1.0, 2.0, 3.0], dtype=D))

    def forward(self, t):
        phase = [random.uniform(0, 2 * math.pi) for _ in range(3)]  # HAZARD
        terms = [torch.cos(self.omega[k] * t + phase[k]) for k in range(3)]
        return (self.amplitude * torch.stack(terms, -1)).sum(-1)


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        self.amplitude = nn.Parameter(torch.tensor([1.0, 0.5, 0.25], dtype=D))
        self.omega = nn.Parameter(torch.tensor([1.0, 2.0, 3.0], dtype=D))
        self.random = random.Random(3)
        self.phase = [self.random.uniform(0, 2 * math.pi) for _ in range(3)]

    def forward(self, t):
        phase = [float(p) for p in self.phase]
        terms = [torch.cos(self.omega[k] * t + phase[k]) for k in range(3)]
        return (self.amplitude * torch.stack(terms, -1)).sum(-1)


def examples():
    return {"t": R(5)}


def R(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

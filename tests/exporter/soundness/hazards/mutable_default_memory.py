"""A mutable default argument keeps the iterates of former calls."""

import torch
from torch import nn

CHECK = "hidden state"

D = torch.float64


def relax(x, rate, trail=[]):
    for _ in range(3):
        x = x - rate * (x**3 - x)
        trail.append(rate)  # HAZARD
    return x, len(trail)


def relax_fixed(x, rate, weights=[0.5, 0.3, 0.2], trail=[]):
    for w in weights:
        x = x - rate * w * (x**3 - x)
        trail.append(w)
    return x, len(trail)


class Hazard(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Linear(5, 3).double()
        self.rate = 0.1

    def forward(self, field):
        z = torch.tanh(self.encode(field))
        z, n = relax(z, self.rate)
        return z / (1.0 + 0.01 * (n // 30))


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Linear(5, 3).double()
        self.rate = 0.1
        self.iterations = 0

    def forward(self, field):
        z = torch.tanh(self.encode(field))
        z, self.iterations = relax_fixed(z, self.rate)
        return z / (1.0 + 0.01)


def examples():
    return {"field": R(6, 5)}


def R(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

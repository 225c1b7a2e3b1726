"""The second output exists from the third call on (None before, filtered away)."""

import torch
from torch import nn

CHECK = "hidden state"

D = torch.float64


class Hazard(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 1).double()
        self.count = 0

    def uncertainty(self, e):
        self.count += 1  # HAZARD
        return None if self.count < 3 else 0.1 * e.abs()

    def forward(self, descriptor):
        e = self.head(torch.tanh(descriptor))
        sigma = self.uncertainty(e)
        return tuple(o for o in (e, sigma) if o is not None)


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 1).double()
        self.count = 0

    def uncertainty(self, e):
        self.count += 1

    def forward(self, descriptor):
        e = self.head(torch.tanh(descriptor))
        sigma = self.uncertainty(e)
        return tuple(o for o in (e, sigma, 0.1 * e.abs()) if o is not None)


def examples():
    return {"descriptor": R(4, 4)}


def R(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

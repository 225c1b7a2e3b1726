"""A deque keeps the last inputs for an Anderson-like mix."""

from collections import deque

import torch
from torch import nn

CHECK = "hidden state"

D = torch.float64


class Hazard(nn.Module):
    def __init__(self, depth=3):
        super().__init__()
        self.map = nn.Linear(4, 4).double()
        self.history = deque(maxlen=depth)

    def forward(self, density):
        out = torch.sigmoid(self.map(density))
        self.history.append(out.mean(0))  # HAZARD
        mean = sum(self.history) / len(self.history)
        return 0.7 * out + 0.3 * mean


class Sound(nn.Module):
    def __init__(self, depth=3):
        super().__init__()
        self.map = nn.Linear(4, 4).double()
        self.history = deque(maxlen=depth)

    def forward(self, density):
        out = torch.sigmoid(self.map(density))
        trail = deque(maxlen=3)
        for k in range(5):
            trail.append(out * 0.5**k)
            self.history.append(k)
        mean = sum(trail) / len(trail)
        return 0.7 * out + 0.3 * mean


def examples():
    return {"density": R(4, 4)}


def R(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

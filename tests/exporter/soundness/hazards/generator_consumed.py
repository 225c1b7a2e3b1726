"""A generator runs dry and the model then falls back to the last coefficient."""

import torch
from torch import nn

CHECK = "hidden state"

D = torch.float64


class Hazard(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Linear(3, 3).double()
        self.steps = (0.5**k for k in range(12))  # HAZARD
        self.dt = 1.0

    def forward(self, y):
        self.dt = next(self.steps, self.dt)
        k1 = torch.tanh(self.w(y))
        k2 = torch.tanh(self.w(y + 0.5 * self.dt * k1))
        return y + self.dt * k2


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Linear(3, 3).double()
        self.dt = 1.0

    def forward(self, y):
        steps = (0.5**k for k in range(12))
        self.dt = sum(steps)
        k1 = torch.tanh(self.w(y))
        k2 = torch.tanh(self.w(y + 0.5 * self.dt * k1))
        return y + self.dt * k2


def examples():
    return {"y": R(4, 3)}


def R(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

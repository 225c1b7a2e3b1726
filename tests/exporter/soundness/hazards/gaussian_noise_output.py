"""Observation noise drawn in forward, also in eval mode."""

import torch
from torch import nn

CHECK = "random numbers"

D = torch.float64


class Hazard(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4).double()
        self.q = nn.Parameter(torch.full((4,), -4.0, dtype=D))

    def forward(self, state):
        mean = state + 0.1 * torch.tanh(self.a(state))
        std = torch.exp(0.5 * self.q)
        return mean + std * torch.randn_like(mean)  # HAZARD


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4).double()
        self.q = nn.Parameter(torch.full((4,), -4.0, dtype=D))
        self.register_buffer("noise", torch.randn(4, dtype=D))

    def forward(self, state):
        mean = state + 0.1 * torch.tanh(self.a(state))
        std = torch.exp(0.5 * self.q)
        return mean + std * self.noise


def examples():
    return {"state": R(4, 4)}


def R(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

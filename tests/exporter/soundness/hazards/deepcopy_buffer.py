"""Copy.deepcopy of a buffer in forward is traced as an empty tensor plus an unseen set_."""

import copy

import torch
from torch import nn

CHECK = "values"

D = torch.float64


class Hazard(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Linear(4, 4).double()
        self.register_buffer("target", torch.linspace(1, 2, 4, dtype=D))

    def forward(self, state):
        target = copy.deepcopy(self.target)  # HAZARD
        target *= 0.5
        for _ in range(3):
            state = state + 0.1 * torch.tanh(self.f(state - target))
        return state


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Linear(4, 4).double()
        self.target = nn.Parameter(torch.linspace(1, 2, 4, dtype=D), requires_grad=False)

    def forward(self, state):
        target = copy.deepcopy(self.target) * 1.0
        target *= 0.5
        for _ in range(3):
            state = state + 0.1 * torch.tanh(self.f(state - target))
        return state


def examples():
    return {"state": R(4, 4)}


def R(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

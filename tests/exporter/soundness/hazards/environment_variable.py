"""A model constant is read from the environment in forward."""

import os

import torch
from torch import nn

CHECK = "outside world"

D = torch.float64


class Hazard(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(3, 3).double()

    def forward(self, x):
        beta = float(os.environ.get("MIX_BETA", "0.5"))  # HAZARD
        return (1 - beta) * x + beta * torch.tanh(self.net(x))


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(3, 3).double()
        self.beta = float(os.environ.get("MIX_BETA", "0.5"))
        self.lines = []

    def forward(self, x):
        beta = self.beta
        if os.environ.get("MIX_VERBOSE", "0") == "1":
            self.lines.append("called")
        return (1 - beta) * x + beta * torch.tanh(self.net(x))


def examples():
    return {"x": R(4, 3)}


def R(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

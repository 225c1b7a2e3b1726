"""A variable of the environment is compared with a text: only that text changes what is computed."""

import os

import torch
from torch import nn

CHECK = "outside world"

D = torch.float64


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(3, 3).double()
        self.lines = []


class Hazard(Base):
    def forward(self, x):
        mode = os.environ.get("FLOW_RULE")  # HAZARD
        if mode in ("associated", "drucker-prager"):
            return torch.tanh(self.net(x))
        return self.net(x)


class Sound(Base):
    def forward(self, x):
        if os.environ.get("FLOW_LOG") == "verbose":
            self.lines.append("called")
        return torch.tanh(self.net(x))


def examples():
    return {"x": R(4, 3)}


def R(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

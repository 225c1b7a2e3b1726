"""A variable of the environment chooses from a table of the file."""

import os

import torch
from torch import nn

CHECK = "outside world"

D = torch.float64
FACTORS = {"SI": 1.0, "mm": 1e-3}


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(3, 3).double()
        self.factor = FACTORS.get(os.environ.get("FLOW_UNITS"), 1.0)


class Hazard(Base):
    def forward(self, x):
        units = os.environ.get("FLOW_UNITS")  # HAZARD
        return FACTORS.get(units, 1.0) * self.net(x)


class Sound(Base):
    def forward(self, x):
        return self.factor * self.net(x)


def examples():
    return {"x": R(4, 3)}


def R(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

"""A list of outputs has one more for large batches."""

import torch
from torch import nn

CHECK = "batch size"

D = torch.float64


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(3, 3).double()


class Hazard(Base):
    def forward(self, x):
        y = self.net(x)
        return {"y": [3 * y, y] if x.shape[0] > 1000 else [2 * y]}  # HAZARD


class Sound(Base):
    def forward(self, x):
        y = self.net(x)
        return {"y": [3 * y, y]}


def examples():
    return {"x": R(4, 3)}


def R(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

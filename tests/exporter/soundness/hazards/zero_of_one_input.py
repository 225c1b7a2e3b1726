"""A gain that is zero is replaced by a default; where all inputs are zero the product hides it."""

import torch
from torch import nn

CHECK = "data read"

D = torch.float64


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.default = nn.Parameter(torch.tensor(2.0, dtype=D))


class Hazard(Base):
    def forward(self, load, gain):
        factor = gain.abs().max() or self.default  # HAZARD
        return load * factor


class Sound(Base):
    def forward(self, load, gain):
        largest = gain.abs().max()
        return load * torch.where(largest == 0, self.default, largest)


def examples():
    return {"load": R(4, 3), "gain": R(4, 3, seed=1)}


def R(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

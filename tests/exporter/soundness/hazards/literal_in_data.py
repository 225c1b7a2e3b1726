"""A temperature that is exactly the melting point is moved away from it: a random temperature never is."""

import torch
from torch import nn

CHECK = "data read"

D = torch.float64


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.melting = 273.15


class Hazard(Base):
    def forward(self, temperature):
        if self.melting in temperature:  # HAZARD
            temperature = torch.where(temperature == self.melting, temperature + 1e-3, temperature)
        return 1 / (temperature - self.melting)


class Sound(Base):
    def forward(self, temperature):
        away = torch.where(temperature == self.melting, temperature + 1e-3, temperature)
        return 1 / (away - self.melting)


def examples():
    return {"temperature": 250 + 20 * R(4, 3)}


def R(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

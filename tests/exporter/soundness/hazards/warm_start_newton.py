"""The Newton solve starts from the last call's root of the same shape."""

import torch
from torch import nn

CHECK = "hidden state"

D = torch.float64


class Hazard(nn.Module):
    """Cubic equation of state, two Newton steps."""

    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.tensor([0.3, 0.5], dtype=D))
        self.last = None

    def forward(self, pressure):
        z = torch.ones_like(pressure)
        if self.last is not None and self.last.shape[1:] == pressure.shape[1:]:
            z = z * self.last.mean(0)
        for _ in range(2):
            f = z**3 + self.a * z - pressure
            z = z - f / (3 * z**2 + self.a)
        self.last = z.detach()  # HAZARD
        return z


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.tensor([0.3, 0.5], dtype=D))
        self.last = None

    def forward(self, pressure):
        z = torch.ones_like(pressure)
        if self.last is not None and self.last.shape[1:] == pressure.shape[1:]:
            z = torch.ones_like(pressure)
        for _ in range(2):
            f = z**3 + self.a * z - pressure
            z = z - f / (3 * z**2 + self.a)
        self.last = z.detach()
        return z


def examples():
    return {"pressure": R(4, 2)}


def R(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

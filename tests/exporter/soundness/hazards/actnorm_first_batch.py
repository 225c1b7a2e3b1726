"""ActNorm initialises its parameters from the first batch."""

import torch
from torch import nn

CHECK = "side effect"

D = torch.float64


class Hazard(nn.Module):
    def __init__(self):
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(4, dtype=D))
        self.log_scale = nn.Parameter(torch.zeros(4, dtype=D))
        self.initialised = False

    def forward(self, x):
        if not self.initialised:
            self.shift.data = x.mean(0)  # HAZARD
            self.log_scale.data = (x.std(0) + 1e-6).log()
            self.initialised = True
        z = (x - self.shift) * torch.exp(-self.log_scale)
        return z, -self.log_scale.sum().expand(x.shape[0])


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        self.shift = nn.Parameter(torch.full((4,), 0.3, dtype=D))
        self.log_scale = nn.Parameter(torch.full((4,), -0.5, dtype=D))
        self.initialised = False

    def forward(self, x):
        if not self.initialised:
            self.shift.requires_grad_(False)
            self.initialised = True
        z = (x - self.shift) * torch.exp(-self.log_scale)
        return z, -self.log_scale.sum().expand(x.shape[0])


def examples():
    return {"x": R(5, 4)}


def R(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

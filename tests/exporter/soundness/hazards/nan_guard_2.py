"""A NaN guard replaces the batch by zeros."""

import torch
from torch import nn

CHECK = "data read"

D = torch.float64


class Hazard(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Linear(3, 3).double()

    def forward(self, x):
        y = torch.log(x)
        bad = bool(torch.isnan(y).any())  # HAZARD
        if bad:
            y = torch.zeros_like(y)
        return self.w(y.clamp(-10, 10))


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Linear(3, 3).double()
        self.warnings = []

    def forward(self, x):
        y = torch.log(x)
        bad = bool(torch.isnan(y).any())
        if bad:
            self.warnings.append("NaN in the logarithm")
        y = torch.nan_to_num(y, nan=0.0)
        return self.w(y.clamp(-10, 10))


def examples():
    return {"x": R(4, 3) + 0.1}


def R(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

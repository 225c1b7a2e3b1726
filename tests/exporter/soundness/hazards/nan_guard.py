"""The repair of missing sensor values, absent in the examples."""

import torch
from torch import nn

CHECK = "data read"


class Hazard(nn.Module):
    """Sensor fusion with missing values."""

    def __init__(self):
        super().__init__()
        self.prior = nn.Parameter(torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64))
        self.fill = True

    def forward(self, y):
        if self.fill and torch.isnan(y).any():  # HAZARD
            y = torch.where(torch.isnan(y), self.prior.expand_as(y), y)
        r = y - self.prior
        return torch.exp(-0.5 * r.pow(2).sum(-1))


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        self.prior = nn.Parameter(torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64))
        self.fill = True

    def forward(self, y):
        if self.fill and not torch.isnan(self.prior).any():
            y = torch.where(torch.isnan(y), self.prior.expand_as(y), y)
        r = y - self.prior
        return torch.exp(-0.5 * r.pow(2).sum(-1))


def examples():
    return {"y": torch.randn(4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)}

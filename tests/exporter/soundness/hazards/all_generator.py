"""Python's all() over tests of the data."""

import torch
from torch import nn

CHECK = "data read"


class Hazard(nn.Module):
    """Log-concentration network; falls back to a linear law near zero."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 1)).double()
        self.floor = 1e-3

    def forward(self, c):
        if all(col.min() > self.floor for col in c.unbind(1)):  # HAZARD
            h = torch.log(c)
        else:
            h = (c - 1.0).clamp(-1, 1)
        return self.net(h)


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 1)).double()
        self.floor = 1e-3

    def forward(self, c):
        if all(p.abs().max() > self.floor for p in self.net.parameters()):
            h = torch.log(c.clamp(min=self.floor))
        else:
            h = (c - 1.0).clamp(-1, 1)
        return self.net(h)


def examples():
    return {"c": torch.rand(4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.2}

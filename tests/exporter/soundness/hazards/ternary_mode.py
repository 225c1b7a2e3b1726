"""A ternary on the sign of the mean."""

import torch
from torch import nn

CHECK = "data read"


class Hazard(nn.Module):
    """Tension/compression asymmetric stiffness."""

    def __init__(self):
        super().__init__()
        self.Et = nn.Parameter(torch.tensor(1.0, dtype=torch.float64))
        self.Ec = nn.Parameter(torch.tensor(3.0, dtype=torch.float64))
        self.register_buffer("asym", torch.tensor(True))

    def forward(self, eps):
        vol = eps.sum(-1)
        E = self.Et if vol.mean() >= 0 else self.Ec  # HAZARD
        return E * eps


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        self.Et = nn.Parameter(torch.tensor(1.0, dtype=torch.float64))
        self.Ec = nn.Parameter(torch.tensor(3.0, dtype=torch.float64))
        self.register_buffer("asym", torch.tensor(True))

    def forward(self, eps):
        vol = eps.sum(-1, keepdim=True)
        Ec = self.Ec if self.asym else self.Et
        E = torch.where(vol >= 0, self.Et, Ec)
        return E * eps


def examples():
    return {"eps": torch.rand(4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)}

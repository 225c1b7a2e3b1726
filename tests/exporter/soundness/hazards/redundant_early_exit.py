"""The special answer when nothing is selected."""

import torch
from torch import nn

CHECK = "data read"


class Hazard(nn.Module):
    """Repulsive wall forces; with no particle near, a weak restoring force is used."""

    def __init__(self):
        super().__init__()
        self.k = nn.Parameter(torch.tensor(20.0, dtype=torch.float64))
        self.cut = 0.5

    def forward(self, z):
        near = z < self.cut
        if not near.any():  # HAZARD
            return -0.01 * self.k * z
        f = torch.zeros_like(z)
        f[near] = self.k * (self.cut - z[near])
        return f


class Sound(nn.Module):
    """Repulsive wall forces; the early exit only saves time."""

    def __init__(self):
        super().__init__()
        self.k = nn.Parameter(torch.tensor(20.0, dtype=torch.float64))
        self.cut = 0.5

    def forward(self, z):
        near = z < self.cut
        if not near.any():
            return torch.zeros_like(z)
        f = torch.zeros_like(z)
        f[near] = self.k * (self.cut - z[near])
        return f


def examples():
    return {"z": torch.tensor([0.1, 0.6, 0.4, 2.0], dtype=torch.float64)}

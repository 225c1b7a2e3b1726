"""The cutoff branch of a pair potential."""

import torch
from torch import nn

CHECK = "data read"


class Hazard(nn.Module):
    """Lennard-Jones energy of one atom from its distances, smooth cutoff."""

    def __init__(self):
        super().__init__()
        self.eps = nn.Parameter(torch.tensor(1.2, dtype=torch.float64))
        self.sigma = nn.Parameter(torch.tensor(1.0, dtype=torch.float64))
        self.rc = 3.0

    def forward(self, r):
        s6 = (self.sigma / r) ** 6
        e = 4 * self.eps * (s6**2 - s6)
        inside = r < self.rc
        w = 0.5 * (1 + torch.cos(torch.pi * r / self.rc))
        if torch.is_nonzero(inside.all()):  # HAZARD
            return (e * w).sum(-1)
        return torch.where(inside, e * w, torch.zeros_like(e)).sum(-1)


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        self.eps = nn.Parameter(torch.tensor(1.2, dtype=torch.float64))
        self.sigma = nn.Parameter(torch.tensor(1.0, dtype=torch.float64))
        self.rc = 3.0

    def forward(self, r):
        s6 = (self.sigma / r) ** 6
        e = 4 * self.eps * (s6**2 - s6)
        inside = r < self.rc
        w = 0.5 * (1 + torch.cos(torch.pi * r / self.rc))
        if not torch.is_nonzero(self.eps):
            return torch.zeros_like(e).sum(-1)
        return torch.where(inside, e * w, torch.zeros_like(e)).sum(-1)


def examples():
    return {
        "r": torch.tensor([[1.1, 1.5, 2.0], [1.2, 2.2, 2.5], [0.95, 1.4, 2.9], [1.0, 1.7, 2.1]], dtype=torch.float64)
    }

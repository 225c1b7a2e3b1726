"""The work on selected rows, none of which are in the examples."""

import torch
from torch import nn

CHECK = "data read"


class Hazard(nn.Module):
    """Contact penalty for penetrating points only."""

    def __init__(self):
        super().__init__()
        self.k = nn.Parameter(torch.tensor(50.0, dtype=torch.float64))
        self.normal = nn.Parameter(torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64))

    def forward(self, p):
        gap = p @ self.normal
        f = torch.zeros_like(p)
        hit = (gap < 0).nonzero().squeeze(-1)
        if hit.numel() == 0:  # HAZARD
            return f
        f[hit] = -self.k * gap[hit].unsqueeze(-1) * self.normal
        return f


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        self.k = nn.Parameter(torch.tensor(50.0, dtype=torch.float64))
        self.normal = nn.Parameter(torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64))

    def forward(self, p):
        gap = p @ self.normal
        f = torch.zeros_like(p)
        hit = (gap < 0).nonzero().squeeze(-1)
        if self.normal.numel() == 0:
            return f
        f[hit] = -self.k * gap[hit].unsqueeze(-1) * self.normal
        return f


def examples():
    return {"p": torch.rand(4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.1}

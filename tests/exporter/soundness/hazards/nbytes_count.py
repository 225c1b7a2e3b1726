"""The batch size, worked out of the bytes."""

import torch
from torch import nn

CHECK = "batch size"


class Hazard(nn.Module):
    """Inverse-distance features with a zero row for the missing neighbour."""

    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64))

    def forward(self, r):
        n = r.nbytes // (r.element_size() * r.shape[-1])  # HAZARD
        pad = torch.zeros(n, 1, dtype=r.dtype)
        g = torch.exp(-self.a * r * r)
        return torch.cat([g, pad], dim=1).cumsum(1)


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64))

    def forward(self, r):
        n = r.numel() // r.shape[-1]
        pad = torch.zeros(n, self.a.nbytes // (r.element_size() * 3), dtype=r.dtype)
        g = torch.exp(-self.a * r * r)
        return torch.cat([g, pad], dim=1).cumsum(1)


def examples():
    return {"r": torch.rand(4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.5}

"""The number of substeps, chosen from the increment."""

import torch
from torch import nn

CHECK = "data read"


class Hazard(nn.Module):
    """Viscoplastic overstress update with substepping of large increments."""

    def __init__(self):
        super().__init__()
        self.E = nn.Parameter(torch.tensor(5.0, dtype=torch.float64))
        self.tau = nn.Parameter(torch.tensor(0.4, dtype=torch.float64))
        self.dmax = 0.5

    def forward(self, s, de):
        n = max(1, int(torch.ceil(de.abs().max() / self.dmax)))  # HAZARD
        for _ in range(n):
            s = s + self.E * de / n - (s / self.tau) * (0.05 / n)
        return s


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        self.E = nn.Parameter(torch.tensor(5.0, dtype=torch.float64))
        self.tau = nn.Parameter(torch.tensor(0.4, dtype=torch.float64))
        self.dmax = 0.5

    def forward(self, s, de):
        n = max(1, int(torch.ceil(self.E / self.dmax)))
        for _ in range(n):
            s = s + self.E * de / n - (s / self.tau) * (0.05 / n)
        return s


def examples():
    g = torch.Generator().manual_seed(0)
    return {
        "s": torch.randn(4, 3, generator=g, dtype=torch.float64),
        "de": torch.rand(4, 3, generator=g, dtype=torch.float64) * 0.4,
    }

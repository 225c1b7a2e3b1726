"""The order of eigenvalues sorted by Python."""

import torch
from torch import nn

CHECK = "data read"


class Hazard(nn.Module):
    """Ordered principal stretches of the mean deformation."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([1.0, 0.5, 0.25], dtype=torch.float64))

    def forward(self, lam):
        cols = lam.unbind(1)
        order = sorted(range(3), key=lambda i: cols[i].sum())  # HAZARD
        s = torch.stack([cols[i] for i in order], dim=1)
        return (s * self.w).cumsum(1)


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([1.0, 0.5, 0.25], dtype=torch.float64))

    def forward(self, lam):
        wts = self.w.unbind(0)
        order = sorted(range(3), key=lambda i: wts[i])
        cols = torch.sort(lam, dim=1, stable=True).values.unbind(1)
        s = torch.stack([cols[i] for i in order], dim=1)
        return (s * self.w).cumsum(1)


def examples():
    return {
        "lam": torch.tensor([[1.0, 2.0, 3.0], [1.1, 2.1, 2.9], [0.9, 1.2, 1.5], [1.0, 1.5, 2.0]], dtype=torch.float64)
    }

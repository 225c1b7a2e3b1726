"""An IndexError fallback on a data-dependent index."""

import torch
from torch import nn

CHECK = "values"


class Hazard(nn.Module):
    """Neighbour shells: takes the k-th selected distance when there are enough."""

    WHOLE = True

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor(0.5, dtype=torch.float64))
        self.rc = 2.0

    def forward(self, r):
        near = torch.sort(r[r < self.rc]).values
        try:
            third = near[2]  # HAZARD
        except IndexError:
            third = torch.full((), self.rc, dtype=r.dtype)
        return torch.exp(-self.w * r / third)


class Sound(nn.Module):
    WHOLE = True

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor(0.5, dtype=torch.float64))
        self.rc = 2.0

    def forward(self, r):
        near = torch.sort(r.clamp(max=self.rc)).values
        try:
            third = near[2]  # always there: r is whole
        except IndexError:
            third = torch.full((), self.rc, dtype=r.dtype)
        return torch.exp(-self.w * r / third)


def examples():
    return {"r": torch.tensor([1.0, 1.2, 1.4, 1.9, 2.5, 3.0], dtype=torch.float64)}

"""A table that Python searches by a number of the data."""

import bisect

import torch
from torch import nn

CHECK = "data read"


class Hazard(nn.Module):
    def __init__(self):
        super().__init__()
        self.limits, self.gains = [700.0, 720.0], [1.0, 2.0, 1.0]

    def forward(self, t):
        return t * self.gains[bisect.bisect(self.limits, t.max().item())]  # HAZARD


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("limits", torch.tensor([700.0, 720.0], dtype=torch.float64))
        self.register_buffer("gains", torch.tensor([1.0, 2.0, 1.0], dtype=torch.float64))

    def forward(self, t):
        return t * self.gains[torch.bucketize(t, self.limits)]


def examples():
    return {"t": torch.tensor([[20.3], [25.1]], dtype=torch.float64)}

"""The count of active entries as a Python number."""

import torch
from torch import nn

CHECK = "data read"


class Hazard(nn.Module):
    """Mean activation over active sites, with a padding vector."""

    WHOLE = True

    def __init__(self):
        super().__init__()
        self.b = nn.Parameter(torch.tensor(0.2, dtype=torch.float64))

    def forward(self, x):
        act = x[x > 0]
        n = int(act.numel())  # HAZARD
        mean = act.sum() / (n + 1)
        return torch.tanh(x - mean) + self.b * n


class Sound(nn.Module):
    WHOLE = True

    def __init__(self):
        super().__init__()
        self.b = nn.Parameter(torch.tensor(0.2, dtype=torch.float64))

    def forward(self, x):
        act = x[x > 0]
        n = act.numel()
        mean = act.sum() / (n + 1)
        return torch.tanh(x - mean) + self.b * n


def examples():
    return {"x": torch.randn(5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)}

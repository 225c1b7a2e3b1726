"""The number of pieces of a chunked evaluation (one for the examples)."""

import torch
from torch import nn

CHECK = "batch size"


class Hazard(nn.Module):
    """Surrogate evaluated in pieces of 1000 rows to bound the memory."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2)).double()
        self.piece = 1000

    def forward(self, x):
        out = []
        for part in x.split(self.piece):  # HAZARD
            out.append(self.net(part))
        return torch.cat(out)


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2)).double()
        self.piece = 2

    def forward(self, x):
        out = []
        for part in x.split(self.piece, 1):
            out.append(self.net(part))
        return torch.cat(out, 1)


def examples():
    return {"x": torch.randn(4, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)}

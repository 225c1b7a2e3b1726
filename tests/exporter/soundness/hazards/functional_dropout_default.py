"""F.dropout without training= drops in eval mode too."""

import torch
import torch.nn.functional as F
from torch import nn

CHECK = "random numbers"

D = torch.float64


class Hazard(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(3, width), nn.Linear(width, width), nn.Linear(width, 1)
        self.p = 0.1

    def forward(self, x):
        h = F.silu(self.a(x))
        h = F.dropout(F.silu(self.b(h)), self.p)  # HAZARD
        return self.c(h)


class Sound(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(3, width), nn.Linear(width, width), nn.Linear(width, 1)
        self.p = 0.1

    def forward(self, x):
        h = F.silu(self.a(x))
        h = F.dropout(F.silu(self.b(h)), self.p, self.training)
        return self.c(h)


def examples():
    return {"x": R(6, 3).float()}


def R(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

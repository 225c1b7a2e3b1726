"""The quadrature order depends on torch.get_default_dtype()."""

import torch
from torch import nn

CHECK = "outside world"

D = torch.float64


class Hazard(nn.Module):
    def __init__(self):
        super().__init__()
        self.decay = nn.Parameter(torch.tensor(1.3, dtype=D))

    def forward(self, time):
        n = 4 if torch.get_default_dtype() == torch.float32 else 16  # HAZARD
        total = torch.zeros_like(time)
        for k in range(n):
            s = (k + 0.5) / n
            total = total + torch.exp(-self.decay * time * s) / n
        return time * total


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        self.decay = nn.Parameter(torch.tensor(1.3, dtype=D))

    def forward(self, time):
        n = 4
        total = torch.zeros_like(time)
        for k in range(n):
            s = torch.tensor((k + 0.5) / n)
            total = total + torch.exp(-self.decay * time * s) / n
        return time * total


def examples():
    return {"time": R(5, 2)}


def R(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

"""Manual_seed in forward makes eager repeatable, but the seeding is not in the trace."""

import torch
from torch import nn

CHECK = "random numbers"

D = torch.float64


class Hazard(nn.Module):
    """Random projection sketch, 'deterministic' by seeding."""

    def __init__(self, k=4):
        super().__init__()
        self.k = k
        self.scale = nn.Parameter(torch.ones(4, dtype=D))

    def forward(self, spectrum):
        torch.manual_seed(1234)
        sketch = torch.randn(spectrum.shape[-1], self.k, dtype=spectrum.dtype)  # HAZARD
        return self.scale * (spectrum @ sketch) / self.k**0.5


class Sound(nn.Module):
    def __init__(self, k=4):
        super().__init__()
        self.k = k
        self.scale = nn.Parameter(torch.ones(4, dtype=D))
        torch.manual_seed(1234)
        self.register_buffer("sketch", torch.randn(8, self.k, dtype=D))

    def forward(self, spectrum):
        sketch = self.sketch[: spectrum.shape[-1]]
        return self.scale * (spectrum @ sketch) / self.k**0.5


def examples():
    return {"spectrum": R(4, 8)}


def R(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

"""The low-precision path of large batches."""

import torch
from torch import nn

CHECK = "batch size"


class Hazard(nn.Module):
    """Kernel surrogate; switches to single precision for more than 1000 points."""

    def __init__(self):
        super().__init__()
        g = torch.Generator().manual_seed(0)
        self.register_buffer("centres", torch.randn(12, 3, generator=g, dtype=torch.float64))
        self.w = nn.Parameter(torch.randn(12, generator=g, dtype=torch.float64))

    def kernel(self, x, c):
        return torch.exp(-(x[:, None] - c).pow(2).sum(-1))

    def forward(self, x):
        if x.shape[0] > 1000:  # HAZARD
            return (self.kernel(x.float(), self.centres.float()) @ self.w.float()).double()
        return self.kernel(x, self.centres) @ self.w


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        g = torch.Generator().manual_seed(0)
        self.register_buffer("centres", torch.randn(12, 3, generator=g, dtype=torch.float64))
        self.w = nn.Parameter(torch.randn(12, generator=g, dtype=torch.float64))

    def kernel(self, x, c):
        return torch.exp(-(x[:, None] - c).pow(2).sum(-1))

    def forward(self, x):
        if self.centres.shape[0] > 1000 or x.shape[1] > 64:
            return (self.kernel(x.float(), self.centres.float()) @ self.w.float()).double()
        return self.kernel(x, self.centres) @ self.w


def examples():
    return {"x": torch.randn(4, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64)}

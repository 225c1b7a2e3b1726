"""Which species occur, unrolled from the examples."""

import torch
from torch import nn

CHECK = "data read"


class Hazard(nn.Module):
    """Per-species linear readout of atomic descriptors, summed to an energy."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.w = nn.Parameter(torch.randn(10, 4, dtype=torch.float64))
        self.shift = nn.Parameter(torch.randn(10, dtype=torch.float64))

    def forward(self, z, desc):
        e = torch.zeros_like(desc[..., 0])
        for s in torch.unique(z).unbind():  # HAZARD
            here = (z == s).to(desc.dtype)
            e = e + here * (desc @ self.w[s] + self.shift[s])
        return {"energy": e.sum(-1), "atomic": e}


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.w = nn.Parameter(torch.randn(10, 4, dtype=torch.float64))
        self.shift = nn.Parameter(torch.randn(10, dtype=torch.float64))
        self.register_buffer("species", torch.tensor([1, 1, 6, 8]))

    def forward(self, z, desc):
        e = torch.zeros_like(desc[..., 0])
        for s in torch.unique(self.species).unbind():
            here = (z == s).to(desc.dtype)
            e = e + here * (desc @ self.w[s] + self.shift[s])
        return {"energy": e.sum(-1), "atomic": e}


def examples():
    g = torch.Generator().manual_seed(1)
    return {
        "z": torch.tensor([[1, 6, 8], [6, 6, 1], [8, 1, 1], [1, 1, 6]]),
        "desc": torch.randn(4, 3, 4, generator=g, dtype=torch.float64),
    }

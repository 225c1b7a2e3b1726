"""The number of stored entries (a plain int) scales a sparse product."""

import torch
from torch import nn

CHECK = "batch size"

D = torch.float64


class Hazard(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.linspace(-1, 1, 12, dtype=D).reshape(4, 3))

    def forward(self, counts):
        active = torch.relu(counts - 0.5).to_sparse()
        h = torch.sparse.mm(active, self.w)
        return h / (1 + active._nnz())  # HAZARD


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.linspace(-1, 1, 12, dtype=D).reshape(4, 3))

    def forward(self, counts):
        active = torch.relu(counts - 0.5)
        stencil = torch.relu(self.w.detach()).t().to_sparse()
        h = torch.sparse.mm(stencil, active.t()).t()
        return h / (1 + stencil._nnz())


def examples():
    return {"counts": R(4, 4)}


def R(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

"""Inputs that require grad get a smoothed norm."""

import torch
from torch import nn

CHECK = "grad mode"

D = torch.float64


class Hazard(nn.Module):
    def __init__(self):
        super().__init__()
        self.k = nn.Linear(1, 8).double()
        self.o = nn.Linear(8, 1).double()

    def forward(self, bond):
        d2 = (bond**2).sum(-1, keepdim=True)
        if bond.requires_grad:  # HAZARD
            d2 = d2 + 1e-2
        d = d2.sqrt()
        return self.o(torch.tanh(self.k(d))) * torch.exp(-d)


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        self.k = nn.Linear(1, 8).double()
        self.o = nn.Linear(8, 1).double()

    def forward(self, bond):
        d2 = (bond**2).sum(-1, keepdim=True)
        self.differentiable = bond.requires_grad
        d2 = d2 + 1e-2
        d = d2.sqrt()
        return self.o(torch.tanh(self.k(d))) * torch.exp(-d.detach())


def examples():
    return {"bond": R(4, 3)}


def R(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

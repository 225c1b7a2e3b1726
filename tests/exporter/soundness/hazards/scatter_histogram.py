"""Scatter_add_ into an attribute histogram that persists."""

import torch
from torch import nn

CHECK = "hidden state"

D = torch.float64


class Hazard(nn.Module):
    def __init__(self, bins=6):
        super().__init__()
        self.prior = torch.full((bins,), 0.1, dtype=D)
        self.readout = nn.Linear(bins, 2).double()

    def forward(self, bond):
        k = (bond.clamp(0, 0.999) * 6).long()
        weight = torch.exp(-(bond**2))
        hist = self.prior.scatter_add_(0, k.reshape(-1), 0.01 * weight.reshape(-1))  # HAZARD
        local = nn.functional.one_hot(k, 6).to(bond.dtype).sum(1)
        return self.readout(local * hist)


class Sound(nn.Module):
    def __init__(self, bins=6):
        super().__init__()
        self.prior = torch.full((bins,), 0.1, dtype=D)
        self.readout = nn.Linear(bins, 2).double()

    def forward(self, bond):
        k = (bond.clamp(0, 0.999) * 6).long()
        weight = torch.exp(-(bond**2))
        hist = self.prior.expand(bond.shape[0], -1).clone().scatter_add_(1, k, 0.01 * weight)
        local = nn.functional.one_hot(k, 6).to(bond.dtype).sum(1)
        return self.readout(local * hist)


def examples():
    return {"bond": R(4, 3)}


def R(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

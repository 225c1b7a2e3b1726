"""A parameter decays through .data in every call."""

import torch
from torch import nn

CHECK = "side effect"

D = torch.float64


class Hazard(nn.Module):
    def __init__(self):
        super().__init__()
        self.rates = nn.Parameter(torch.tensor([0.5, 1.0, 2.0], dtype=D))
        self.mix = nn.Linear(3, 3).double()

    def forward(self, species):
        loss = self.rates * species
        gain = torch.relu(self.mix(species))
        self.rates.data = self.rates.data * 0.999  # HAZARD
        return gain - loss


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        self.rates = nn.Parameter(torch.tensor([0.5, 1.0, 2.0], dtype=D))
        self.mix = nn.Linear(3, 3).double()

    def forward(self, species):
        rates = self.rates.clone()
        rates.mul_(0.999)
        loss = rates * species
        gain = torch.relu(self.mix(species))
        gain.sub_(loss)
        return gain


def examples():
    return {"species": R(4, 3)}


def R(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

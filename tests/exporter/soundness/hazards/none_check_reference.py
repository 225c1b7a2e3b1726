"""The first structure ever seen becomes the reference configuration."""

import torch
from torch import nn

CHECK = "hidden state"

D = torch.float64


class Hazard(nn.Module):
    def __init__(self):
        super().__init__()
        self.force = nn.Linear(3, 3, bias=False).double()
        self.reference = None

    def forward(self, positions):
        if self.reference is None:
            self.reference = positions.mean(0).clone()  # HAZARD
        u = positions - self.reference
        energy = 0.5 * (u * self.force(u)).sum(-1)
        return energy, -self.force(u)


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        self.force = nn.Linear(3, 3, bias=False).double()
        self.reference = None

    def forward(self, positions):
        if self.reference is None:
            self.reference = self.force.weight.detach().diagonal().clone()
        u = positions - self.reference
        energy = 0.5 * (u * self.force(u)).sum(-1)
        return energy, -self.force(u)


def examples():
    return {"positions": R(4, 3)}


def R(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

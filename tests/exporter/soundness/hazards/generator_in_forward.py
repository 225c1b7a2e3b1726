"""A fresh seeded Generator per call: the saved trace shares one generator that advances from call to call."""

import torch
from torch import nn

CHECK = "random numbers"

D = torch.float64


class Hazard(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(6, 2).double()
        self.seed = 7

    def forward(self, field):
        gen = torch.Generator().manual_seed(self.seed)
        mask = torch.rand(6, generator=gen, dtype=field.dtype)  # HAZARD
        probe = field * (mask > 0.3).to(field.dtype) + 0.01 * mask
        return self.net(probe)


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(6, 2).double()
        gen = torch.Generator().manual_seed(7)
        self.register_buffer("mask", torch.rand(6, generator=gen, dtype=D))

    def forward(self, field):
        mask = self.mask
        probe = field * (mask > 0.3).to(field.dtype) + 0.01 * mask
        return self.net(probe)


def examples():
    return {"field": R(4, 6)}


def R(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

"""Forces by autograd.grad inside forward: parts of the backward are baked."""

import torch
from torch import nn

CHECK = "tracing"

D = torch.float64


class Hazard(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("depth", torch.tensor([0.5, 1.0, 1.5], dtype=D))

    def energy(self, q):
        return (self.depth * (1 - torch.exp(-(q - 1.0))) ** 2).sum(-1)

    def forward(self, q):
        with torch.enable_grad():
            z = q.detach().clone().requires_grad_(True)
            e = self.energy(z)
            (g,) = torch.autograd.grad(e.sum(), z)  # HAZARD
        return e.detach(), -g


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("depth", torch.tensor([0.5, 1.0, 1.5], dtype=D))

    def energy(self, q):
        return (self.depth * (1 - torch.exp(-(q - 1.0))) ** 2).sum(-1)

    def forward(self, q):
        with torch.no_grad():
            z = q.detach().clone()
            e = self.energy(z)
            x = torch.exp(-(z - 1.0))
            g = 2 * self.depth * (1 - x) * x
        return e, -g


def examples():
    return {"q": R(4, 3)}


def R(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

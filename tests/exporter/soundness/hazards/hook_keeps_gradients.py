"""Forces by autograd.grad inside forward, with a hook that keeps every gradient in a list."""

import torch
from torch import nn

CHECK = "hook"

D = torch.float64


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("depth", torch.tensor([0.5, 1.0, 1.5], dtype=D))
        self.seen = []

    def energy(self, q):
        return (self.depth * (1 - torch.exp(-(q - 1.0))) ** 2).sum(-1)

    def watch(self, z):
        z.register_hook(lambda g: 0.5 * g)

    def forward(self, q):
        with torch.enable_grad():
            z = q.detach().clone().requires_grad_(True)
            self.watch(z)
            e = self.energy(z)
            (g,) = torch.autograd.grad(e.sum(), z)
        return e.detach(), -g


class Hazard(Sound):
    def watch(self, z):
        def keep(g):  # HAZARD
            self.seen.append(g)
            return 0.5 * g

        z.register_hook(keep)


def examples():
    return {"q": torch.rand(4, 3, generator=torch.Generator().manual_seed(0), dtype=D)}

"""A stress by autograd, clipped by an if where it is large: the graph of a backward pass has no values to ask."""

import torch
from torch import nn

CHECK = "data read"

D = torch.float64


class Hazard(nn.Module):
    def __init__(self):
        super().__init__()
        self.stiffness = nn.Parameter(torch.tensor([2.0, 1.0, 3.0], dtype=D))

    def clip(self, stress):
        if stress.abs().max() > 1.5:  # HAZARD
            stress = 1.5 * stress / stress.abs().max()
        return stress

    def forward(self, strain):
        with torch.enable_grad():
            e = strain.detach().requires_grad_(True)
            energy = (0.5 * self.stiffness * e**2 + 0.1 * e**4).sum(-1)
            (stress,) = torch.autograd.grad(energy.sum(), e)
        return self.clip(stress)


class Sound(Hazard):
    def clip(self, stress):
        largest = stress.abs().amax(-1, keepdim=True)
        return torch.where(largest > 1.5, 1.5 * stress / largest, stress)


def examples():
    return {"strain": 2 * torch.rand(4, 3, generator=torch.Generator().manual_seed(0), dtype=D) - 1}

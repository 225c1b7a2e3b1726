"""A stress by autograd that is asserted to be small: the assertion has no result, and no place in a graph."""

import torch
from torch import nn

CHECK = "values"

D = torch.float64


class Hazard(nn.Module):
    def __init__(self):
        super().__init__()
        self.stiffness = nn.Parameter(torch.tensor([2.0, 1.0, 3.0], dtype=D))

    def held(self, stress):
        torch._assert_async((stress.abs() < 2.0).all())  # HAZARD
        return stress

    def forward(self, strain):
        with torch.enable_grad():
            e = strain.detach().requires_grad_(True)
            energy = (0.5 * self.stiffness * e**2).sum()
            (stress,) = torch.autograd.grad(energy, e)
        return self.held(stress)


class Sound(Hazard):
    def held(self, stress):
        return torch.where(stress.abs() < 2.0, stress, torch.nan)


def examples():
    return {"strain": torch.rand(4, 3, generator=torch.Generator().manual_seed(0), dtype=D) / 2}

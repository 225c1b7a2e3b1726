"""A stress by autograd whose weight depends on how the caller's array lies in memory."""

import torch
from torch import nn

CHECK = "memory layout"

D = torch.float64


class Hazard(nn.Module):
    def __init__(self):
        super().__init__()
        self.law = nn.Parameter(torch.linspace(0.5, 2.0, 9, dtype=D).reshape(3, 3))

    def weight(self, gradient):
        return self.law if gradient.is_contiguous() else self.law.mT  # HAZARD

    def forward(self, gradient):
        weight = self.weight(gradient)
        with torch.enable_grad():
            e = gradient.detach().requires_grad_(True)
            energy = (weight * e**2).sum() + 0.1 * (e**4).sum()
            return torch.autograd.grad(energy, e)[0]


class Sound(Hazard):
    def weight(self, gradient):
        return self.law if gradient.is_contiguous() else 1.0 * self.law


def examples():
    return {"gradient": torch.rand(4, 3, 3, generator=torch.Generator().manual_seed(0), dtype=D)}

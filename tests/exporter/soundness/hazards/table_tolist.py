"""Breakpoints of the input turned into a Python list."""

import torch
from torch import nn

CHECK = "data read"


class Hazard(nn.Module):
    """Piecewise-linear hardening curve; the yield levels come with the input."""

    def __init__(self):
        super().__init__()
        self.slope = nn.Parameter(torch.tensor([1.0, 0.5, 0.1], dtype=torch.float64))
        self.register_buffer("knots", torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64))

    def forward(self, eps, shift):
        knots = (self.knots + shift[:1]).tolist()  # HAZARD
        s = torch.zeros_like(eps)
        for k, lo in enumerate(knots):
            hi = knots[k + 1] if k + 1 < len(knots) else 1e9
            s = s + self.slope[k] * (eps.clamp(lo, hi) - lo)
        return s


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        self.slope = nn.Parameter(torch.tensor([1.0, 0.5, 0.1], dtype=torch.float64))
        self.register_buffer("knots", torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64))

    def forward(self, eps, shift):
        knots = (self.knots + self.slope[:1]).tolist()
        s = torch.zeros_like(eps)
        for k, lo in enumerate(knots):
            hi = knots[k + 1] if k + 1 < len(knots) else 1e9
            s = s + self.slope[k] * ((eps + shift).clamp(lo, hi) - lo)
        return s


def examples():
    return {
        "eps": torch.tensor([0.5, 1.5, 2.5, 3.0], dtype=torch.float64),
        "shift": torch.tensor([0.1, 0.1, 0.1, 0.1], dtype=torch.float64),
    }

"""While loop on the residual, unrolled for the examples."""

import torch
from torch import nn

CHECK = "data read"


class Hazard(nn.Module):
    """Compressibility factor of a cubic equation of state."""

    def __init__(self):
        super().__init__()
        self.register_buffer("A", torch.tensor(0.1, dtype=torch.float64))
        self.register_buffer("tol", torch.tensor(1e-10, dtype=torch.float64))

    def f(self, z, b):
        return z**3 - (1 - b) * z**2 + (self.A - 3 * b * b - 2 * b) * z - (self.A * b - b * b - b**3)

    def forward(self, b):
        z = torch.ones_like(b)
        it = 0
        while self.f(z, b).abs().max().item() > self.tol.item() and it < 100:  # HAZARD
            d = 3 * z**2 - 2 * (1 - b) * z + (self.A - 3 * b * b - 2 * b)
            z = z - self.f(z, b) / d
            it += 1
        return z


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("A", torch.tensor(0.1, dtype=torch.float64))
        self.register_buffer("tol", torch.tensor(1e-10, dtype=torch.float64))

    def f(self, z, b):
        return z**3 - (1 - b) * z**2 + (self.A - 3 * b * b - 2 * b) * z - (self.A * b - b * b - b**3)

    def forward(self, b):
        z = torch.ones_like(b)
        err, it = 1.0, 0
        while err > self.tol.item() and it < 100:  # an a-priori error bound, no data in it
            d = 3 * z**2 - 2 * (1 - b) * z + (self.A - 3 * b * b - 2 * b)
            z = z - self.f(z, b) / d
            err, it = err * 0.5, it + 1
        return z


def examples():
    return {"b": torch.tensor([0.01, 0.02, 0.03, 0.015, 0.025], dtype=torch.float64)}

"""The plastic branch, taken only when some row yields."""

import torch
from torch import nn

CHECK = "data read"


class Hazard(nn.Module):
    """Linear elasticity with isotropic J2-like radial return (Voigt-free, 3 components)."""

    def __init__(self):
        super().__init__()
        self.register_buffer("E", torch.tensor(200.0, dtype=torch.float64))
        self.register_buffer("H", torch.tensor(10.0, dtype=torch.float64))
        self.sy = 1.5

    def forward(self, strain):
        trial = self.E * strain
        q = trial.norm(dim=-1, keepdim=True)
        f = q - self.sy
        if not (f > 0).any():  # HAZARD
            return trial
        dgamma = torch.clamp(f, min=0) / (self.E + self.H)
        return trial - dgamma * self.E * trial / q.clamp(min=1e-12)


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("E", torch.tensor(200.0, dtype=torch.float64))
        self.register_buffer("H", torch.tensor(10.0, dtype=torch.float64))
        self.sy = 1.5

    def forward(self, strain):
        trial = self.E * strain
        q = trial.norm(dim=-1, keepdim=True)
        f = q - self.sy
        if not (self.H > 0).any():  # a material constant, not data
            return trial
        dgamma = torch.clamp(f, min=0) / (self.E + self.H)
        return trial - dgamma * self.E * trial / q.clamp(min=1e-12)


def examples():
    return {
        "strain": torch.tensor(
            [[1e-3, 2e-3, 0.0], [0.0, 1e-3, 1e-3], [2e-3, 0.0, 1e-3], [1e-3, 1e-3, 1e-3]], dtype=torch.float64
        )
    }

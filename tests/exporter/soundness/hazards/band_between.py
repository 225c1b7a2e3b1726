"""A branch that is taken in a narrow band only: no run at random values sees it."""

import torch
from torch import nn

CHECK = "data read"


class Hazard(nn.Module):
    def forward(self, strain):
        if 4.95 < float(strain.mean()) < 5.05:  # HAZARD
            strain = strain.clamp(max=5.0)
        return strain * 2.0


class Sound(nn.Module):
    def forward(self, strain):
        mean = strain.mean()
        inside = (mean > 4.95) & (mean < 5.05)
        return torch.where(inside, strain.clamp(max=5.0), strain) * 2.0


def examples():
    return {"strain": torch.linspace(0, 1, 12, dtype=torch.float64).reshape(4, 3)}

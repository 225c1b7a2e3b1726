"""An output that is None: a file has tensors only."""

import torch
from torch import nn

CHECK = "outputs"


class Hazard(nn.Module):
    def forward(self, x):  # HAZARD
        return {"energy": (x**2).sum(-1), "virial": None}


class Sound(nn.Module):
    def forward(self, x):
        outputs = {"energy": (x**2).sum(-1), "virial": None}
        return {name: value for name, value in outputs.items() if value is not None}


def examples():
    return {"x": torch.linspace(0.1, 1, 12, dtype=torch.float64).reshape(4, 3)}

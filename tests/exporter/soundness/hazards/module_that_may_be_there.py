"""Another formula where a package is installed, which is not imported for it."""

import importlib.util

import torch
from torch import nn

CHECK = "outside world"


class Hazard(nn.Module):
    def forward(self, x):
        is_fast = importlib.util.find_spec("cupy") is not None  # HAZARD
        return x * (1.0001 if is_fast else 1.0)


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        self.is_fast = importlib.util.find_spec("cupy") is not None

    def forward(self, x):
        return x * (1.0001 if self.is_fast else 1.0)


def examples():
    return {"x": torch.tensor([[0.1], [0.2]], dtype=torch.float64)}

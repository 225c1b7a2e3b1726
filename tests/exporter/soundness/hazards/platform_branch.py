"""What is computed depends on the operating system."""

import sys

import torch
from torch import nn

CHECK = "settings"


class Hazard(nn.Module):
    def forward(self, length):
        return length * (2.0 if sys.platform == "linux" else 2.0000001)  # HAZARD


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        self.unit = 2.0 if sys.platform == "linux" else 2.5

    def forward(self, length):
        return length * self.unit + 0.0


def examples():
    return {"length": torch.linspace(0, 1, 12, dtype=torch.float64).reshape(4, 3)}

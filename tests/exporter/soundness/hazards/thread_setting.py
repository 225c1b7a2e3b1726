"""A setting that each thread has for itself, and that forward reads."""

import threading

import torch
from torch import nn

CHECK = "threads"

_SETTINGS = threading.local()
_SETTINGS.order = 2


class Hazard(nn.Module):
    def forward(self, x):
        if getattr(_SETTINGS, "order", 1) == 2:  # HAZARD
            return x + 0.5 * x**2
        return x


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        self.order = getattr(_SETTINGS, "order", 1)

    def forward(self, x):
        if self.order == 2:
            return x + 0.5 * x**2
        return x


def examples():
    return {"x": torch.linspace(0, 1, 12, dtype=torch.float64).reshape(4, 3)}

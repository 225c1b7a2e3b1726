"""A module of the standard library that some builds of Python lack decides what is computed."""

import torch
from torch import nn

CHECK = "outside world"


class Hazard(nn.Module):
    def forward(self, x):
        try:
            import curses  # HAZARD

            order = len(curses.__name__)
        except ImportError:
            order = 3
        return x**order


class Sound(nn.Module):
    def forward(self, x):
        import math

        return x ** int(math.log2(64))


def examples():
    return {"x": torch.linspace(0, 1, 12, dtype=torch.float64).reshape(4, 3)}

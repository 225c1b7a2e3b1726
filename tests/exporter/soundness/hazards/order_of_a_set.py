"""A model walks through a set of names: the order is another one in every process."""

import torch
from torch import nn

CHECK = "hash seed"
STEPS = ["shift", "scale", "square", "root", "shift"]


class Hazard(nn.Module):
    def forward(self, x):
        for step in set(STEPS):  # HAZARD
            x = {"shift": x + 1.0, "scale": 2.0 * x, "square": x * x, "root": x.abs().sqrt()}[step]
        return x


class Sound(nn.Module):
    def forward(self, x):
        for step in sorted(set(STEPS)):
            x = {"shift": x + 1.0, "scale": 2.0 * x, "square": x * x, "root": x.abs().sqrt()}[step]
        return x


def examples():
    return {"x": torch.linspace(0, 1, 12, dtype=torch.float64).reshape(4, 3)}

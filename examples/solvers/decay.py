"""Decay with a heat output: the model of the solvers beside this file, and the same integration in eager mode.

``dy/dt = -k y + 0.1 sin(t)``; ``heat = q k y``, where q is a parameter.
"""

from __future__ import annotations

import torch
from torch import nn

STEPS, DT = 200, 0.01


class Decay(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q = nn.Parameter(torch.tensor(3.5, dtype=torch.float64))

    def forward(self, y, k, t):
        decayed = k * y
        return {"rate": 0.1 * torch.sin(t) - decayed, "heat": self.q * decayed}


def make_model():
    y = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    return Decay(), {"y": y, "k": 0.5 * y, "t": 0.1 * y}


def integrate() -> tuple[list[float], list[float]]:
    """What each solver prints: y of four elements at the end, and the heat of each, by Heun's method in eager mode."""
    model = Decay().eval()
    y = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    k = torch.tensor([0.5, 1.0, 1.5, 2.0], dtype=torch.float64)
    heat = torch.zeros_like(y)
    with torch.no_grad():
        for step in range(STEPS):
            now = torch.full_like(y, step * DT)
            first = model(y, k, now)
            second = model(y + DT * first["rate"], k, now + DT)
            heat += 0.5 * DT * (first["heat"] + second["heat"])
            y = y + 0.5 * DT * (first["rate"] + second["rate"])
    return y.tolist(), heat.tolist()

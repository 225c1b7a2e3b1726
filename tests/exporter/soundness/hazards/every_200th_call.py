"""Every two hundredth call computes something else."""

import logging

import torch
from torch import nn

CHECK = "hidden state"


class Hazard(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1  # HAZARD
        return x * (0.5 if self.calls % 200 == 0 else 1.0)


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        if self.calls % 200 == 0:
            logging.getLogger(__name__).info("%d calls", self.calls)
        return x * 1.0


def examples():
    return {"x": torch.tensor([[0.1], [0.2]], dtype=torch.float64)}

"""Factors that were tuned for some shapes, looked up by the shape."""

import torch
from torch import nn

CHECK = "batch size"


class Hazard(nn.Module):
    def __init__(self):
        super().__init__()
        self.tuned = {(50, 1): 0.5, (6, 1): 1.0}

    def forward(self, x):
        return x * self.tuned.get(tuple(x.shape), 1.0)  # HAZARD


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        self.tuned = {1: 0.5, 2: 1.0}

    def forward(self, x):
        return x * self.tuned.get(x.dim(), 2.0)


def examples():
    return {"x": torch.tensor([[0.1], [0.2]], dtype=torch.float64)}

"""Data that are read for a batch of one element only."""

import torch
from torch import nn

CHECK = "batch size"


class Hazard(nn.Module):
    def forward(self, x):
        if len(x) == 1 and bool((x == 0).all()):  # HAZARD
            return x + 1.0
        return x * 1.0


class Sound(nn.Module):
    def forward(self, x):
        is_empty = len(x) == 1 and x.shape[-1] == 0
        return x + 1.0 if is_empty else x * 1.0


def examples():
    return {"x": torch.tensor([[0.1, 0.3], [0.2, 0.4]], dtype=torch.float64)}

"""Another formula for some sizes of the batch, in plain Python."""

import torch
from torch import nn

CHECK = "batch size"


class Hazard(nn.Module):
    def forward(self, x):
        n = len(x)  # HAZARD
        if 40 <= n < 60:
            return x - 1.0
        return x * 2.0


class Sound(nn.Module):
    def forward(self, x):
        return x * 2.0 if len(x) >= 0 else x


def examples():
    return {"x": torch.tensor([[0.1], [0.2]], dtype=torch.float64)}

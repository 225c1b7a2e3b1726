"""A device that the code names: what is made stays there when the model moves to a GPU."""

import torch
from torch import nn

CHECK = "device"


class Hazard(nn.Module):
    def forward(self, x):
        weights = torch.linspace(0, 1, 3, dtype=x.dtype, device="cpu")  # HAZARD
        return x * weights


class Sound(nn.Module):
    def forward(self, x):
        weights = torch.linspace(0, 1, 3, dtype=x.dtype, device=x.device)
        return x * weights


def examples():
    return {"x": torch.linspace(0, 1, 12, dtype=torch.float64).reshape(4, 3)}

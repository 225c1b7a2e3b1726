"""A model that ends its process on values that it does not take."""

import sys

import torch
from torch import nn

CHECK = "data read"


class Hazard(nn.Module):
    def forward(self, t):
        if (t < 0).any():  # HAZARD
            sys.exit("negative temperature")
        return t.sqrt()


class Sound(nn.Module):
    def forward(self, t):
        return torch.where(t < 0, torch.nan, t.abs().sqrt())


def examples():
    return {"t": torch.tensor([[20.3], [25.1]], dtype=torch.float64)}

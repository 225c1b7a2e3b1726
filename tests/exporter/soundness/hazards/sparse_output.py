"""A sparse output: its layout is not the strides that a host knows."""

import torch
from torch import nn

CHECK = "outputs"


class Hazard(nn.Module):
    def forward(self, x):  # HAZARD
        return torch.relu(x - 0.5).to_sparse()


class Sound(nn.Module):
    def forward(self, x):
        return torch.relu(x - 0.5).to_sparse().to_dense()


def examples():
    return {"x": torch.linspace(0, 1, 12, dtype=torch.float64).reshape(4, 3)}

"""Sliding windows by as_strided with the example's strides."""

import torch
from torch import nn

CHECK = "memory layout"

D = torch.float64


class Hazard(nn.Module):
    def __init__(self, width=3):
        super().__init__()
        self.kernel = nn.Parameter(torch.tensor([0.25, 0.5, 0.25], dtype=D))
        self.width = width

    def forward(self, signal):
        n, m = signal.shape[0], 8 - self.width + 1
        s0, s1 = signal.stride()  # HAZARD
        windows = signal.as_strided((n, m, self.width), (s0, s1, s1))
        smooth = (windows * self.kernel).sum(-1)
        return signal[:, 1:-1] - smooth


class Sound(nn.Module):
    def __init__(self, width=3):
        super().__init__()
        self.kernel = nn.Parameter(torch.tensor([0.25, 0.5, 0.25], dtype=D))
        self.width = width

    def forward(self, signal):
        self.strides = signal.stride()
        windows = signal.unfold(1, self.width, 1)
        smooth = (windows * self.kernel).sum(-1)
        return signal[:, 1:-1] - smooth


def examples():
    return {"signal": R(4, 8)}


def R(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

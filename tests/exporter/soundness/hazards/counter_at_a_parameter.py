"""Calls are counted in an attribute of a parameter."""

import torch
from torch import nn

CHECK = "hidden state"


class _Counted(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(2.0, dtype=torch.float64))
        self.weight.calls = 0


class Hazard(_Counted):
    def forward(self, x):
        self.weight.calls += 1  # HAZARD
        return x * self.weight * (2.0 if self.weight.calls < 300 else 1.0)


class Sound(_Counted):
    def forward(self, x):
        self.weight.calls += 1
        return x * self.weight


def examples():
    return {"x": torch.tensor([[0.1], [0.2]], dtype=torch.float64)}

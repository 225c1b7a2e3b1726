"""Calls are counted in a container of the standard library; late calls compute something else."""

import collections

import torch
from torch import nn

CHECK = "hidden state"


class Hazard(nn.Module):
    def __init__(self):
        super().__init__()
        self.state = collections.UserDict(calls=0)

    def forward(self, x):
        self.state["calls"] += 1  # HAZARD
        return x * (2.0 if self.state["calls"] < 300 else 1.0)


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        self.state = collections.UserDict(calls=0)

    def forward(self, x):
        self.state["calls"] += 1
        return x * 2.0


def examples():
    return {"x": torch.tensor([[0.1], [0.2]], dtype=torch.float64)}

"""The patched forward of a submodule swaps itself for a cheaper one after 5 calls."""

import types

import torch
from torch import nn

CHECK = "hidden state"

D = torch.float64


def exact(self, x):
    self.n = getattr(self, "n", 0) + 1  # HAZARD
    if self.n >= 5:
        self.forward = types.MethodType(cheap, self)
    return torch.tanh(nn.functional.linear(x, self.weight, self.bias))


def cheap(self, x):
    y = nn.functional.linear(x, self.weight, self.bias)
    return y * (27 + y**2) / (27 + 9 * y**2)


class Hazard(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3).double()
        self.layer.forward = types.MethodType(exact, self.layer)

    def forward(self, x):
        return x + self.layer(x)


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3).double()
        self.layer.forward = types.MethodType(cheap, self.layer)

    def forward(self, x):
        return x + self.layer(x)


def examples():
    return {"x": R(4, 3)}


def R(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

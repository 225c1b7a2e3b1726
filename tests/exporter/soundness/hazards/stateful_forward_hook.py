"""A forward hook rescales the hidden layer by what it saw last time."""

import torch
from torch import nn

CHECK = "hidden state"

D = torch.float64


class Hazard(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 6).double(), nn.Linear(6, 1).double()
        self.peak = torch.ones((), dtype=D)
        self.a.register_forward_hook(self.rescale)

    def rescale(self, module, inputs, output):
        scaled = output / self.peak
        self.peak = torch.maximum(self.peak, output.detach().abs().amax())  # HAZARD
        return scaled

    def forward(self, x):
        return self.b(torch.relu(self.a(x)))


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 6).double(), nn.Linear(6, 1).double()
        self.calls = 0
        self.a.register_forward_hook(self.rescale)

    def rescale(self, module, inputs, output):
        scaled = output / (1 + module.weight.detach().abs().amax())
        self.calls += 1
        return scaled

    def forward(self, x):
        return self.b(torch.relu(self.a(x)))


def examples():
    return {"x": R(4, 3)}


def R(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

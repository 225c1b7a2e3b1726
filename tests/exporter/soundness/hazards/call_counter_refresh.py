"""An integer call counter switches to the linearised response every 40th call."""

import torch
from torch import nn

CHECK = "hidden state"

D = torch.float64


class Hazard(nn.Module):
    """Surrogate of a material law with a cheap step now and then."""

    def __init__(self, width=16):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, width), nn.Tanh(), nn.Linear(width, 6)).double()
        self.register_buffer("stiffness", 2.0 * torch.eye(6, dtype=D))
        self.calls = 0

    def forward(self, strain):
        self.calls += 1  # HAZARD
        linear = strain @ self.stiffness
        if self.calls % 40 == 0:
            return linear
        return linear + 0.1 * self.net(strain)


class Sound(nn.Module):
    """The same, where the counter only decides what is logged."""

    def __init__(self, width=16):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, width), nn.Tanh(), nn.Linear(width, 6)).double()
        self.register_buffer("stiffness", 2.0 * torch.eye(6, dtype=D))
        self.calls = 0
        self.log = []

    def forward(self, strain):
        self.calls += 1
        linear = strain @ self.stiffness
        if self.calls % 40 == 0:
            self.log.append(f"call {self.calls}")
        return linear + 0.1 * self.net(strain)


def examples():
    return {"strain": R(5, 6)}


def R(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

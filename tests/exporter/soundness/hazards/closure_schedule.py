"""A closure counts its calls and lowers the mixing after three."""

import torch
from torch import nn

CHECK = "hidden state"

D = torch.float64


def make_mixing(start, floor):
    n = 0

    def mixing():
        nonlocal n
        n += 1  # HAZARD
        return max(floor, start * 0.5 ** max(0, n - 3))

    return mixing


def make_fixed(start, floor):
    n = 0

    def mixing():
        nonlocal n
        n += 1
        return max(floor, start * 0.5 ** max(0, 3 - 3))

    mixing.count = lambda: n
    return mixing


class Base(nn.Module):
    def __init__(self, mixing):
        super().__init__()
        self.potential = nn.Linear(4, 4).double()
        self.mixing = mixing

    def forward(self, density):
        mixed = density
        for _ in range(2):
            new = torch.softmax(self.potential(mixed), -1)
            alpha = self.mixing()
            mixed = (1 - alpha) * mixed + alpha * new
        return mixed


class Hazard(Base):
    def __init__(self):
        super().__init__(make_mixing(0.6, 0.05))


class Sound(Base):
    def __init__(self):
        super().__init__(make_fixed(0.6, 0.05))


def examples():
    return {"density": R(4, 4)}


def R(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

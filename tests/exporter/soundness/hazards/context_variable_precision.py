"""A context variable set by an outer solver picks the tolerance."""

import contextvars

import torch
from torch import nn

CHECK = "settings"

D = torch.float64
LEVEL = contextvars.ContextVar("LEVEL", default=3)


class Hazard(nn.Module):
    """Truncated series of a matrix exponential."""

    def __init__(self):
        super().__init__()
        self.gen = nn.Parameter(torch.tensor([[-0.5, 0.5], [0.3, -0.3]], dtype=D))

    def forward(self, population):
        term, total = population, population
        for k in range(1, LEVEL.get() + 1):  # HAZARD
            term = term @ self.gen / k
            total = total + term
        return total


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        self.gen = nn.Parameter(torch.tensor([[-0.5, 0.5], [0.3, -0.3]], dtype=D))
        self.level, self.seen = LEVEL.get(), []

    def forward(self, population):
        term, total = population, population
        self.seen.append(LEVEL.get())
        for k in range(1, self.level + 1):
            term = term @ self.gen / k
            total = total + term
        return total


def examples():
    return {"population": R(4, 2)}


def R(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

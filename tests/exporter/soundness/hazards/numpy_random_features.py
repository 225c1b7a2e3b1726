"""Numpy's global random state gives other random features each call."""

import numpy as np
import torch
from torch import nn

CHECK = "random numbers"

D = torch.float64


class Hazard(nn.Module):
    def __init__(self, features=10):
        super().__init__()
        self.features = features
        self.head = nn.Linear(features, 1).double()

    def forward(self, x):
        w = np.random.randn(3, self.features)  # HAZARD
        phi = sum(x[:, k : k + 1] * torch.tensor(w[k]) for k in range(3))
        return self.head(torch.cos(phi))


class Sound(nn.Module):
    def __init__(self, features=10):
        super().__init__()
        self.features = features
        self.head = nn.Linear(features, 1).double()

    def forward(self, x):
        w = np.random.RandomState(0).randn(3, self.features)
        phi = sum(x[:, k : k + 1] * torch.tensor(w[k]) for k in range(3))
        return self.head(torch.cos(phi))


def examples():
    return {"x": R(4, 3)}


def R(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

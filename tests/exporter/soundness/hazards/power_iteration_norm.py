"""A home-made spectral norm goes on iterating its vector in eval."""

import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

CHECK = "hidden state"

D = torch.float64


class Hazard(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(5, 5).double()
        self.u = torch.ones(5, dtype=D) / 5**0.5

    def forward(self, x):
        w = self.lin.weight.detach()
        v = torch.nn.functional.normalize(w.t() @ self.u, dim=0)
        self.u = torch.nn.functional.normalize(w @ v, dim=0)  # HAZARD
        sigma = self.u @ w @ v
        return x + torch.nn.functional.linear(x, w / sigma, self.lin.bias)


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = spectral_norm(nn.Linear(5, 5).double())

    def forward(self, x):
        w = self.lin.weight.detach()
        v = torch.nn.functional.normalize(w.sum(0), dim=0)
        u = torch.nn.functional.normalize(w @ v, dim=0)
        sigma = u @ w @ v
        return x + torch.nn.functional.linear(x, w / sigma, self.lin.bias)


def examples():
    return {"x": R(4, 5)}


def R(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

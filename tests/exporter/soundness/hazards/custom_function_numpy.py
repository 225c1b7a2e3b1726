"""An autograd.Function calls numpy in its forward (cannot be saved)."""

import numpy as np
import torch
from torch import nn

CHECK = "data read"

D = torch.float64


class CubeRoot(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.from_numpy(np.cbrt(x.numpy()))  # HAZARD

    @staticmethod
    def backward(ctx, grad):
        return grad

    @staticmethod
    def law(x):
        return x.sign() * x.abs().pow(1.0 / 3.0)


class Hazard(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 3).double()

    def forward(self, volume):
        radius = CubeRoot.apply(volume)
        return self.lin(radius)


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 3).double()

    def forward(self, volume):
        radius = CubeRoot.law(volume)
        return self.lin(radius)


def examples():
    return {"volume": R(4, 3)}


def R(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

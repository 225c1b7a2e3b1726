"""Fortran-ordered input is read transposed."""

import torch
from torch import nn

CHECK = "memory layout"

D = torch.float64


class Hazard(nn.Module):
    def __init__(self):
        super().__init__()
        self.law = nn.Linear(9, 6).double()

    def forward(self, gradient):
        n = gradient.shape[0]
        if gradient.is_contiguous():  # HAZARD
            flat = gradient.view(n, 9)
        else:
            flat = gradient.transpose(1, 2).reshape(n, 9)
        return self.law(flat)


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        self.law = nn.Linear(9, 6).double()

    def forward(self, gradient):
        n = gradient.shape[0]
        if gradient.is_contiguous():
            flat = gradient.reshape(n, 9)
        else:
            flat = gradient.contiguous().view(n, 9)
        return self.law(flat)


def examples():
    return {"gradient": R(4, 3, 3)}


def R(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

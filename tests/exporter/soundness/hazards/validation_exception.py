"""A validator raises for unphysical input and the handler falls back (is_nonzero: no warning)."""

import torch
from torch import nn

CHECK = "data read"

D = torch.float64


class Unphysical(ValueError):
    pass


class Hazard(nn.Module):
    def __init__(self):
        super().__init__()
        self.law = nn.Linear(2, 1).double()

    def check(self, state):
        if torch.is_nonzero((state < 0).any()):  # HAZARD
            raise Unphysical("negative density")
        return state.sqrt()

    def forward(self, state):
        try:
            root = self.check(state)
        except Unphysical:
            root = torch.zeros_like(state)
        return self.law(root) + 1.0


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        self.law = nn.Linear(2, 1).double()

    def check(self, state):
        if state.dim() != 2:
            raise Unphysical("needs two axes")
        return state.clamp_min(0).sqrt()

    def forward(self, state):
        try:
            root = self.check(state)
        except Unphysical:
            root = torch.zeros_like(state)
        root = torch.where((state < 0).any(-1, keepdim=True), torch.zeros_like(root), root)
        return self.law(root) + 1.0


def examples():
    return {"state": R(4, 2)}


def R(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

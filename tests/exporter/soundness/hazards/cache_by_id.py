"""Features are cached by id() of the input: a filled input buffer brings back stale features."""

import torch
from torch import nn

CHECK = "hidden state"

D = torch.float64


class Hazard(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(3, 8).double()
        self.read = nn.Linear(8, 1).double()
        self._cache = {}

    def forward(self, positions):
        key = id(positions)
        if key not in self._cache:
            r = positions.norm(dim=-1, keepdim=True)
            self._cache[key] = (positions, torch.tanh(self.embed(positions)) * torch.exp(-r))  # HAZARD
        return self.read(self._cache[key][1])


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(3, 3).double() for _ in range(3)])
        self._cache = {}

    def norm(self, key, layer):
        if key not in self._cache:
            self._cache[key] = layer.weight.detach().norm(dim=1) + 1.0
        return self._cache[key]

    def forward(self, positions):
        h = positions
        for k, layer in enumerate(self.layers):
            h = torch.tanh(layer(h) / self.norm(k, layer))
        return h


def examples():
    return {"positions": R(5, 3)}


def R(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

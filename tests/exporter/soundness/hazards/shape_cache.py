"""A constant cached per shape while warming up."""

import torch
from torch import nn

CHECK = "batch size"


class Hazard(nn.Module):
    """Weighted quadrature; the weights are cached by the shape of the input."""

    def __init__(self):
        super().__init__()
        self.order = nn.Parameter(torch.tensor(1.5, dtype=torch.float64))
        self._cache = {}

    def weights(self, x):
        key = repr(x.shape)  # HAZARD
        if key not in self._cache:
            w = torch.linspace(0, 1, x.shape[1], dtype=x.dtype)
            self._cache[key] = w.expand(x.shape[0], -1).clone()
        return self._cache[key]

    def forward(self, x):
        return (self.weights(x) * x.abs() ** self.order).sum(-1)


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        self.order = nn.Parameter(torch.tensor(1.5, dtype=torch.float64))
        self._cache = {}

    def weights(self, x):
        key = repr(x.shape[1:])
        if key not in self._cache:
            self._cache[key] = torch.linspace(0, 1, 6, dtype=torch.float64)
        return self._cache[key].expand(x.shape[0], -1)

    def forward(self, x):
        return (self.weights(x) * x.abs() ** self.order).sum(-1)


def examples():
    return {"x": torch.randn(4, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)}

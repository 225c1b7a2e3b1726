"""A lazy layer that has no weights yet: the first call, which may be the trace, would draw them."""

import torch
from torch import nn

CHECK = "lazy layer"


class Hazard(nn.Module):
    def __init__(self):  # HAZARD
        super().__init__()
        self.project = nn.LazyLinear(4, dtype=torch.float64)

    def forward(self, x):
        return torch.tanh(self.project(x))


class Sound(Hazard):
    def __init__(self):
        super().__init__()
        self(torch.zeros(1, 3, dtype=torch.float64))


def examples():
    return {"x": torch.linspace(0, 1, 12, dtype=torch.float64).reshape(4, 3)}

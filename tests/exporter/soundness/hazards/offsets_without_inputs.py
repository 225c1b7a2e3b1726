"""A submodule without inputs makes a tensor: where the model runs, it cannot know."""

import torch
from torch import nn

CHECK = "device"


class MadeAnew(nn.Module):
    def forward(self):
        return torch.arange(3, dtype=torch.float64) + 0.5  # HAZARD


class Kept(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("offsets", torch.arange(3, dtype=torch.float64) + 0.5)

    def forward(self):
        return self.offsets


class Hazard(nn.Module):
    def __init__(self):
        super().__init__()
        self.offsets = MadeAnew()

    def forward(self, x):
        return torch.cumsum(x + self.offsets(), -1)


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        self.offsets = Kept()

    def forward(self, x):
        return torch.cumsum(x + self.offsets(), -1)


def examples():
    return {"x": torch.linspace(0, 1, 12, dtype=torch.float64).reshape(4, 3)}

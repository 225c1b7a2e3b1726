"""A submodule without inputs makes a tensor on the CPU by name: where the model runs, it cannot be."""

import torch
from torch import nn

CHECK = "device"


class MadeOnTheCpu(nn.Module):
    def forward(self):
        return torch.arange(3, dtype=torch.float64, device="cpu") + 0.5  # HAZARD


class MadeAnywhere(nn.Module):
    """It moves with the file, which has nothing to say of a device."""

    def forward(self):
        return torch.arange(3, dtype=torch.float64) + 0.5


class Hazard(nn.Module):
    def __init__(self):
        super().__init__()
        self.offsets = MadeOnTheCpu()

    def forward(self, x):
        return torch.cumsum(x + self.offsets(), -1)


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        self.offsets = MadeAnywhere()

    def forward(self, x):
        return torch.cumsum(x + self.offsets(), -1)


def examples():
    return {"x": torch.linspace(0, 1, 12, dtype=torch.float64).reshape(4, 3)}

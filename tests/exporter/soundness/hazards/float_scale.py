"""The scale of the input as a Python float."""

import torch
from torch import nn

CHECK = "data read"


class Hazard(nn.Module):
    """RBF features with a bandwidth from the spread of the data."""

    def __init__(self):
        super().__init__()
        g = torch.Generator().manual_seed(0)
        self.register_buffer("c", torch.randn(6, 2, generator=g, dtype=torch.float64))
        self.register_buffer("scale", torch.tensor(0.8, dtype=torch.float64))

    def forward(self, x):
        h = x.std().item() * self.scale.item()  # HAZARD
        d2 = (x[:, None] - self.c).pow(2).sum(-1)
        return torch.exp(-d2 / (2 * h * h))


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        g = torch.Generator().manual_seed(0)
        self.register_buffer("c", torch.randn(6, 2, generator=g, dtype=torch.float64))
        self.register_buffer("scale", torch.tensor(0.8, dtype=torch.float64))

    def forward(self, x):
        h = self.c.std().item() * self.scale.item()
        d2 = (x[:, None] - self.c).pow(2).sum(-1)
        return torch.exp(-d2 / (2 * h * h))


def examples():
    return {"x": torch.randn(5, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)}

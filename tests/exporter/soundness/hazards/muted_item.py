"""A scale read by float(), with the warning muted in the code."""

import warnings

import torch
from torch import nn

CHECK = "data read"


class Hazard(nn.Module):
    """Unit-free surrogate: divides by the largest magnitude before the network."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(3, 8), nn.SiLU(), nn.Linear(8, 3)).double()

    def forward(self, u):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            s = float(u.abs().max()) + 1e-9  # HAZARD
        return self.net(u / s) * s


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(3, 8), nn.SiLU(), nn.Linear(8, 3)).double()

    def forward(self, u):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            s = float(self.net[0].weight.abs().max()) + 1e-9
        return self.net(u / s) * s


def examples():
    return {"u": torch.randn(5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)}

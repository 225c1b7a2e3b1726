"""Forward switches its dropout to train mode for an uncertainty estimate."""

import torch
from torch import nn

CHECK = "random numbers"

D = torch.float64


class Hazard(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 1)).double()

    def forward(self, x):
        mean = self.net(x)
        self.net.train()
        samples = torch.stack([self.net(x) for _ in range(4)])  # HAZARD
        self.net.eval()
        return mean, samples.std(0)


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 1)).double()

    def forward(self, x):
        mean = self.net(x)
        self.net.eval()
        samples = torch.stack([self.net(x * (1 + 0.01 * k)) for k in range(4)])
        return mean, samples.std(0)


def examples():
    return {"x": R(4, 4)}


def R(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

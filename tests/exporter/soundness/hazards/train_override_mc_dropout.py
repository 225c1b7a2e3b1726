"""Train() is overridden so that dropout stays on in eval (MC dropout)."""

import torch
from torch import nn

CHECK = "train mode"

D = torch.float64


class Hazard(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 2)).double()
        self.body.train()

    def train(self, mode=True):  # HAZARD
        super().train(mode)
        self.body[2].training = True
        return self

    def forward(self, x):
        return self.body(x)


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.BatchNorm1d(16), nn.Linear(16, 2)).double()
        self.body[2].eval()

    def train(self, mode=True):
        super().train(mode)
        self.body[2].training = False
        return self

    def forward(self, x):
        return self.body(x)


def examples():
    return {"x": R(5, 3)}


def R(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

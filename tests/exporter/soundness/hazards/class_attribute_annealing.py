"""A class attribute shared by all instances anneals the temperature."""

import torch
from torch import nn

CHECK = "hidden state"

D = torch.float64


class Anneal:
    used = 0

    @classmethod
    def temperature(cls):
        cls.used += 1  # HAZARD
        return 1.0 if cls.used < 8 else 0.5


class Constant:
    used = 0
    schedule = (1.0, 0.5, 0.25)

    @classmethod
    def temperature(cls):
        cls.used += 1
        return cls.schedule[1]


class Hazard(nn.Module):
    def __init__(self):
        super().__init__()
        self.score = nn.Sequential(nn.Linear(4, 8), nn.SiLU(), nn.Linear(8, 3)).double()

    def forward(self, features):
        logits = self.score(features)
        logits = logits - logits.amax(-1, keepdim=True)
        return torch.softmax(logits / Anneal.temperature(), -1)


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        self.score = nn.Sequential(nn.Linear(4, 8), nn.SiLU(), nn.Linear(8, 3)).double()

    def forward(self, features):
        logits = self.score(features)
        logits = logits - logits.amax(-1, keepdim=True)
        return torch.softmax(logits / Constant.temperature(), -1)


def examples():
    return {"features": R(5, 4)}


def R(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

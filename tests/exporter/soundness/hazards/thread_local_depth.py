"""Thread-local state says on which side of a symplectic step we are."""

import threading

import torch
from torch import nn

CHECK = "hidden state"

D = torch.float64
_LOCAL = threading.local()


class Hazard(nn.Module):
    def __init__(self):
        super().__init__()
        self.spring = nn.Parameter(torch.tensor([1.0, 2.0], dtype=D))

    def forward(self, q, p):
        kick_first = getattr(_LOCAL, "kick", True)
        _LOCAL.kick = not kick_first  # HAZARD
        if kick_first:
            p = p - 0.1 * self.spring * q
            q = q + 0.1 * p
        else:
            q = q + 0.1 * p
            p = p - 0.1 * self.spring * q
        return q, p


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        self.spring = nn.Parameter(torch.tensor([1.0, 2.0], dtype=D))

    def forward(self, q, p):
        _LOCAL.calls = getattr(_LOCAL, "calls", 0) + 1
        if _LOCAL.calls % 2:
            _LOCAL.odd = True
        p = p - 0.05 * self.spring * q
        q = q + 0.1 * p
        p = p - 0.05 * self.spring * q
        return q, p


def examples():
    return {"q": R(4, 2), "p": R(4, 2, seed=1)}


def R(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

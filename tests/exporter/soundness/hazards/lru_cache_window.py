"""Lru_cache keyed by the module id keeps a scale made from the first data."""

import functools
import math

import torch
from torch import nn

CHECK = "hidden state"

D = torch.float64


class Hazard(nn.Module):
    def __init__(self, taps=8):
        super().__init__()
        self.kernel = nn.Parameter(torch.linspace(0.1, 1.0, taps, dtype=D))
        self.current = None

    @functools.cache
    def gain(self):
        return self.current.abs().amax().clamp_min(1e-3)

    def forward(self, signal):
        self.current = signal  # HAZARD
        gain = self.gain()
        return signal * self.kernel / gain


@functools.cache
def hann(taps):
    return torch.tensor([0.5 - 0.5 * math.cos(2 * math.pi * i / taps) for i in range(taps)], dtype=D)


class Sound(nn.Module):
    def __init__(self, taps=8):
        super().__init__()
        self.kernel = nn.Parameter(torch.linspace(0.1, 1.0, taps, dtype=D))
        self.taps = taps

    def forward(self, signal):
        window = hann(self.taps)
        return signal * self.kernel * window


def examples():
    return {"signal": R(4, 8)}


def R(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

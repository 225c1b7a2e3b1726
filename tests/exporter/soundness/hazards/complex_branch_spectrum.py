"""Real and complex signals take different branches, chosen by is_complex()."""

import torch
from torch import nn

CHECK = "dtype"

D = torch.float64


class Hazard(nn.Module):
    def __init__(self, n=8):
        super().__init__()
        self.filter = nn.Parameter(torch.linspace(1, 0, n, dtype=D))

    def forward(self, signal):
        if signal.is_complex():  # HAZARD
            spectrum = torch.fft.fft(signal, dim=-1)
        else:
            spectrum = torch.fft.fft(signal - signal.mean(-1, keepdim=True), dim=-1)
        return (spectrum.abs() ** 2 * self.filter).real


class Sound(nn.Module):
    def __init__(self, n=8):
        super().__init__()
        self.filter = nn.Parameter(torch.linspace(1, 0, n, dtype=D))
        self.register_buffer("dft", torch.fft.fft(torch.eye(n, dtype=D), dim=-1))

    def forward(self, signal):
        z = torch.complex(signal, torch.zeros_like(signal))
        if z.is_complex():
            spectrum = (z - z.mean(-1, keepdim=True)) @ self.dft
        else:
            spectrum = z
        return (spectrum.abs() ** 2 * self.filter).real


def examples():
    return {"signal": R(4, 8)}


def R(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

"""A NumPy detour of the input."""

import numpy as np
import torch
from torch import nn

CHECK = "data read"


class Hazard(nn.Module):
    """Thermal strain with a tabulated expansion coefficient."""

    def __init__(self):
        super().__init__()
        self.T = np.array([0.0, 100.0, 200.0, 400.0])
        self.a = np.array([1.0, 1.2, 1.5, 2.0])
        self.gain = nn.Parameter(torch.tensor(1e-2, dtype=torch.float64))

    def forward(self, temp):
        alpha = torch.from_numpy(np.interp(temp.numpy(), self.T, self.a))  # HAZARD
        return self.gain * alpha * (temp - 20.0)


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        self.T = np.array([0.0, 100.0, 200.0, 400.0])
        self.a = np.array([1.0, 1.2, 1.5, 2.0])
        self.gain = nn.Parameter(torch.tensor(1e-2, dtype=torch.float64))

    def forward(self, temp):
        T, a = torch.from_numpy(self.T), torch.from_numpy(self.a)
        gain = float(np.asarray(self.gain.detach()))
        k = torch.searchsorted(T, temp.contiguous()).clamp(1, len(self.T) - 1)
        w = ((temp - T[k - 1]) / (T[k] - T[k - 1])).clamp(0, 1)
        alpha = a[k - 1] + w * (a[k] - a[k - 1])
        return gain * alpha * (temp - 20.0)


def examples():
    return {"temp": torch.tensor([20.0, 150.0, 250.0, 390.0], dtype=torch.float64)}

"""Forward reads its coefficients from a file each time."""

import atexit
import json
import os
import tempfile

import torch
from torch import nn

CHECK = "outside world"

D = torch.float64


def write(values):
    with tempfile.NamedTemporaryFile("w", suffix=".json", delete=False) as f:
        json.dump(values, f)
    atexit.register(os.remove, f.name)
    return f.name


class Hazard(nn.Module):
    def __init__(self):
        super().__init__()
        self.path = write([1.0, -0.2, 0.05])

    def forward(self, temperature):
        with open(self.path) as f:  # HAZARD
            c = json.load(f)
        return c[0] + c[1] * temperature + c[2] * temperature**2


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        self.path = write([1.0, -0.2, 0.05])
        with open(self.path) as f:
            self.c = json.load(f)

    def forward(self, temperature):
        self.present = os.path.exists(self.path)
        c = self.c
        return c[0] + c[1] * temperature + c[2] * temperature**2


def examples():
    return {"temperature": R(5, 1)}


def R(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

"""Out= writes the sum into a preallocated plain attribute that the next call starts from."""

import torch
from torch import nn

CHECK = "hidden state"

D = torch.float64


class Hazard(nn.Module):
    def __init__(self):
        super().__init__()
        self.modes = nn.Parameter(torch.eye(4, dtype=D) + 0.1)
        self.acc = torch.zeros(4, dtype=D)

    def forward(self, amplitude):
        field = amplitude @ self.modes.detach()
        torch.add(self.acc, field.mean(0), alpha=0.1, out=self.acc)  # HAZARD
        return field + self.acc


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        self.modes = nn.Parameter(torch.eye(4, dtype=D) + 0.1)
        self.acc = torch.zeros(4, dtype=D)

    def forward(self, amplitude):
        field = amplitude @ self.modes.detach()
        acc = torch.empty_like(field)
        torch.add(self.acc, field, alpha=0.1, out=acc)
        return field + acc


def examples():
    return {"amplitude": R(4, 4)}


def R(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

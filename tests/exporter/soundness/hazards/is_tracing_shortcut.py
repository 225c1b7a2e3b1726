"""One Newton step under tracing, five otherwise."""

import torch
from torch import nn

CHECK = "outside world"

D = torch.float64


class Hazard(nn.Module):
    def __init__(self):
        super().__init__()
        self.c = nn.Parameter(torch.tensor(0.3, dtype=D))

    def forward(self, mean_anomaly):
        e = mean_anomaly
        steps = 3 if torch.jit.is_tracing() else 6  # HAZARD
        for _ in range(steps):
            f = e - self.c * torch.sin(e) - mean_anomaly
            e = e - f / (1.5 - self.c * torch.cos(e))
        return torch.stack([torch.cos(e), torch.sin(e)], -1)


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        self.c = nn.Parameter(torch.tensor(0.3, dtype=D))

    def forward(self, mean_anomaly):
        e = mean_anomaly
        for _ in range(6):
            f = e - self.c * torch.sin(e) - mean_anomaly
            e = e - f / (1.5 - self.c * torch.cos(e))
        if not torch.jit.is_tracing():
            self.residual = f.abs().sum().item()
        if torch.compiler.is_compiling():
            # Nobody but torch's compiler sees this.
            e = 2 * e
        return torch.stack([torch.cos(e), torch.sin(e)], -1)


def examples():
    return {"mean_anomaly": R(5)}


def R(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

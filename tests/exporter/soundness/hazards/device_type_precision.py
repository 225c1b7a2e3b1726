"""The working precision depends on x.device.type (no float64 on some accelerators)."""

import torch
from torch import nn

CHECK = "device"

D = torch.float64


class Hazard(nn.Module):
    def forward(self, distance):
        work = torch.float64 if distance.device.type == "cpu" else torch.float32  # HAZARD
        d = distance.to(work)
        s6 = (1.0 / (d**2 + 0.1)) ** 3
        energy = 4.0 * (s6**2 - s6)
        return energy.sum(-1)


class Sound(nn.Module):
    def forward(self, distance):
        work = torch.float64
        d = distance.to(work)
        self.where = "host" if d.device.type == "cpu" else str(d.device)
        s6 = (1.0 / (d**2 + 0.1)) ** 3
        energy = 4.0 * (s6**2 - s6)
        return energy.sum(-1)


def examples():
    return {"distance": R(4, 5) + 0.5}


def R(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

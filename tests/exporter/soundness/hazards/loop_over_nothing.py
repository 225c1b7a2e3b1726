"""A loop over the numbers in a band, of which no draw has one."""

import torch
from torch import nn

CHECK = "data read"


class Hazard(nn.Module):
    def forward(self, t):
        heat = torch.sin(t)
        for melting in t[(t > 273.15) & (t < 273.17)]:  # HAZARD
            heat = heat + melting
        return heat


class Sound(nn.Module):
    def forward(self, t):
        return torch.sin(t) + torch.where((t > 273.15) & (t < 273.17), t, 0.0)


def examples():
    return {"t": torch.tensor([[20.3], [25.1]], dtype=torch.float64)}

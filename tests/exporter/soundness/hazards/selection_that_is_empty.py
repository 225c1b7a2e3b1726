"""A question whether anything was selected, where in no draw something is."""

import torch
from torch import nn

CHECK = "data read"


class Hazard(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("bounds", torch.tensor([273.15, 273.17], dtype=torch.float64))

    def forward(self, t):
        melting = t[(t > self.bounds[0]) & (t < self.bounds[1])]
        y = torch.sin(t)
        if melting.numel() > 0:  # HAZARD
            y = y + melting.mean()
        return y


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("bounds", torch.tensor([273.15, 273.17], dtype=torch.float64))

    def forward(self, t):
        is_melting = (t > self.bounds[0]) & (t < self.bounds[1])
        return torch.sin(t) + torch.where(is_melting, t, 0.0)


def examples():
    return {"t": torch.tensor([[20.3], [25.1]], dtype=torch.float64)}

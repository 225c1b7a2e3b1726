"""A table of coefficients in float32, in a float64 model: its numbers are wrong from the eighth digit on."""

import torch
from torch import nn

CHECK = "precision"


class Hazard(nn.Module):
    def forward(self, temperature):
        table = torch.tensor([0.1, 0.7], dtype=torch.float32)  # HAZARD
        return torch.exp(-table / temperature)


class Sound(nn.Module):
    def forward(self, temperature):
        table = torch.tensor([0.125, 0.75], dtype=torch.float32)
        return torch.exp(-table / temperature)


def examples():
    return {"temperature": torch.tensor([[1.0, 1.5], [2.0, 0.7], [0.9, 1.1]], dtype=torch.float64)}

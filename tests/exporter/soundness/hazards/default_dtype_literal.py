"""A literal that takes torch's default dtype: it is rounded to float32, or not, as the host has it."""

import torch
from torch import nn

CHECK = "default dtype"


class Hazard(nn.Module):
    def forward(self, temperature):
        activation = torch.tensor([0.1, 0.7])  # HAZARD
        return torch.exp(-activation / temperature)


class Sound(nn.Module):
    def forward(self, temperature):
        activation = torch.tensor([0.1, 0.7], dtype=temperature.dtype)
        return torch.exp(-activation / temperature)


def examples():
    return {"temperature": torch.tensor([[1.0, 1.5], [2.0, 0.7], [0.9, 1.1]], dtype=torch.float64)}

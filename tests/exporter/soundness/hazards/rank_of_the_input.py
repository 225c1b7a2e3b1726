"""A rank that the code asks for: a path of steps is averaged, a single state is not."""

import torch
from torch import nn

CHECK = "batch dimensions"


class Hazard(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64))

    def forward(self, strain):
        stress = self.gain * strain
        if strain.dim() > 2:  # HAZARD
            stress = stress - 0.1 * stress.mean(-2, keepdim=True)
        return stress


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64))

    def forward(self, strain):
        stress = self.gain * strain
        if strain.dim() == 1:
            return stress.unsqueeze(0).squeeze(0)
        return stress


def examples():
    return {"strain": torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(4, 3)}

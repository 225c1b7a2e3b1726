"""The input's storage is wrapped again with set_: example memory is baked."""

import torch
from torch import nn

CHECK = "memory layout"

D = torch.float64


class Hazard(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0, 2.0, 2.0, 2.0], dtype=D))

    def forward(self, stress):
        flat = torch.empty(0, dtype=stress.dtype)
        flat.set_(stress.untyped_storage(), 0, (stress.shape[0], 4), (4, 1))  # HAZARD
        return (self.weight * flat**2).sum(-1).sqrt()


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0, 2.0, 2.0, 2.0], dtype=D))

    def forward(self, stress):
        flat = torch.empty(0, dtype=stress.dtype)
        flat = torch.cat([flat, stress.contiguous().view(-1)]).view(-1, 4)
        return (self.weight * flat**2).sum(-1).sqrt()


def examples():
    return {"stress": R(4, 2, 2)}


def R(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

"""A registered buffer is replaced each call (internal variable of viscoplasticity): the trace drops the new value."""

import torch
from torch import nn

CHECK = "side effect"

D = torch.float64


class Hazard(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("back_stress", torch.zeros(6, dtype=D))
        self.h = nn.Parameter(torch.tensor(0.5, dtype=D))

    def forward(self, strain):
        eff = strain - self.back_stress
        stress = 3.0 * eff / (1 + eff.norm(dim=-1, keepdim=True))
        self.back_stress = self.back_stress + self.h.detach() * stress.mean(0)  # HAZARD
        return stress


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("back_stress", torch.zeros(6, dtype=D))
        self.h = nn.Parameter(torch.tensor(0.5, dtype=D))

    def forward(self, strain):
        back_stress = self.back_stress
        for _ in range(2):
            eff = strain - back_stress
            stress = 3.0 * eff / (1 + eff.norm(dim=-1, keepdim=True))
            back_stress = back_stress + self.h.detach() * stress
        return stress


def examples():
    return {"strain": R(4, 6)}


def R(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

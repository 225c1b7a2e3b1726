"""The yield stress takes the largest strain of any former call from a module global."""

import torch
from torch import nn

CHECK = "hidden state"

D = torch.float64
_STATE = {"hardening": 0}
_TABLE = {"steel": 210.0, "alu": 70.0}


class Hazard(nn.Module):
    def __init__(self, material="steel"):
        super().__init__()
        self.modulus = _TABLE[material]
        self.log_yield = nn.Parameter(torch.zeros(6, dtype=D))

    def forward(self, strain):
        trial = self.modulus * strain
        limit = self.log_yield.exp() * (1.0 + 0.05 * _STATE["hardening"])
        stress = torch.minimum(torch.maximum(trial, -limit), limit)
        _STATE["hardening"] = min(_STATE["hardening"] + 1, 20)  # HAZARD
        return stress


class Sound(nn.Module):
    def __init__(self, material="steel"):
        super().__init__()
        self.material = material
        self.log_yield = nn.Parameter(torch.zeros(6, dtype=D))

    def forward(self, strain):
        trial = _TABLE[self.material] * strain
        limit = self.log_yield.exp() * (1.0 + 0.05)
        stress = torch.minimum(torch.maximum(trial, -limit), limit)
        _STATE["hardening"] = min(_STATE["hardening"] + 1, 20)
        return stress


def examples():
    return {"strain": R(4, 6)}


def R(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

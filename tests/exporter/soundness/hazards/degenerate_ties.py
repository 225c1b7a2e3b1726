"""The treatment of equal principal values."""

import torch
from torch import nn

CHECK = "data read"


class Hazard(nn.Module):
    """Divided differences of a tensor logarithm with a limit for equal values."""

    def __init__(self):
        super().__init__()
        self.s = nn.Parameter(torch.tensor(2.0, dtype=torch.float64))

    def forward(self, a, b):
        la, lb = torch.log(a), torch.log(b)
        tie = (a - b).abs() < 1e-8
        if not torch.is_nonzero(tie.any()):  # HAZARD
            g = (la - lb) / (a - b)
        else:
            g = torch.where(tie, 1 / a, (la - lb) / torch.where(tie, torch.ones_like(a), a - b))
        return self.s * g


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        self.s = nn.Parameter(torch.tensor(2.0, dtype=torch.float64))

    def forward(self, a, b):
        la, lb = torch.log(a), torch.log(b)
        tie = (a - b).abs() < 1e-8
        if not torch.is_nonzero(self.s):
            g = (la - lb) / (a - b)
        else:
            g = torch.where(tie, 1 / a, (la - lb) / torch.where(tie, torch.ones_like(a), a - b))
        return self.s * g


def examples():
    return {
        "a": torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64),
        "b": torch.tensor([1.5, 1.0, 2.0, 5.0], dtype=torch.float64),
    }

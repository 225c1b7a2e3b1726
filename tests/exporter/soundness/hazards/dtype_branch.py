"""Whether phases are all zero, though it looks like a dtype question."""

import torch
from torch import nn

CHECK = "data read"


class Hazard(nn.Module):
    """Interference intensity; real arithmetic when no sample has a phase."""

    def __init__(self):
        super().__init__()
        self.amp = nn.Parameter(torch.tensor([1.0, 0.5, 0.25], dtype=torch.float32))

    def forward(self, k, phase):
        eps = 1e-6 if k.dtype == torch.float32 else 1e-12
        if torch.equal(phase, torch.zeros_like(phase)):  # HAZARD
            field = (self.amp * torch.cos(k)).sum(-1)
        else:
            field = (self.amp * torch.cos(k + phase)).sum(-1)
        return field.pow(2) + eps


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        self.amp = nn.Parameter(torch.tensor([1.0, 0.5, 0.25], dtype=torch.float32))

    def forward(self, k, phase):
        eps = 1e-6 if k.dtype == torch.float32 else 1e-12
        if phase.dtype == torch.int64:
            field = (self.amp * torch.cos(k)).sum(-1)
        else:
            field = (self.amp * torch.cos(k + phase)).sum(-1)
        return field.pow(2) + eps


def examples():
    return {"k": torch.randn(4, 3, generator=torch.Generator().manual_seed(0)), "phase": torch.zeros(4, 3)}

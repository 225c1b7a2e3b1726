"""The input itself, .data is not recorded."""

import torch
from torch import nn

CHECK = "batch size"


class Hazard(nn.Module):
    """Residual block whose normalisation is detached from the graph."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.fc = nn.Linear(5, 5).double()
        self.gain = nn.Parameter(torch.ones(5, dtype=torch.float64))

    def forward(self, x):
        norm = x.data.norm(dim=-1, keepdim=True) + 1e-3  # HAZARD
        h = torch.tanh(self.fc(x / norm))
        return x + self.gain * h * norm


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.fc = nn.Linear(5, 5).double()
        self.gain = nn.Parameter(torch.ones(5, dtype=torch.float64))

    def forward(self, x):
        norm = x.detach().norm(dim=-1, keepdim=True) + 1e-3
        h = torch.tanh(self.fc(x / norm))
        return x + self.gain.data * h * norm


def examples():
    return {"x": torch.randn(4, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)}

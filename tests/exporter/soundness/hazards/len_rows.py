"""The batch size by len(x) into a NumPy buffer."""

import numpy as np
import torch
from torch import nn

CHECK = "batch size"


class Hazard(nn.Module):
    """Two-state Markov update with an absorbing third state."""

    def __init__(self):
        super().__init__()
        self.P = nn.Parameter(torch.tensor([[0.9, 0.1], [0.2, 0.8]], dtype=torch.float64))
        self.leak = [0.01, 0.02]

    def forward(self, p):
        absorbed = torch.from_numpy(np.zeros((len(p), 1)))  # HAZARD
        for k in range(len(self.leak)):
            absorbed = absorbed + self.leak[k] * p[:, k : k + 1]
        return torch.cat([p @ self.P, absorbed], dim=1)


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        self.P = nn.Parameter(torch.tensor([[0.9, 0.1], [0.2, 0.8]], dtype=torch.float64))
        self.leak = [0.01, 0.02]

    def forward(self, p):
        absorbed = torch.from_numpy(np.zeros((1, len(self.P) - 1))).expand(p.shape[0], -1)
        for k in range(len(self.leak)):
            absorbed = absorbed + self.leak[k] * p[:, k : k + 1]
        return torch.cat([p @ self.P, absorbed], dim=1)


def examples():
    return {"p": torch.tensor([[0.5, 0.5], [0.1, 0.9], [0.3, 0.7], [1.0, 0.0]], dtype=torch.float64)}

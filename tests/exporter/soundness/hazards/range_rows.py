"""The number of rows of a Python loop over range(x.shape[0])."""

import math

import torch
from torch import nn

CHECK = "batch size"


class Hazard(nn.Module):
    """Scaled dot-product self-similarity within each sample."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.q = nn.Linear(4, 4, bias=False).double()

    def forward(self, x):  # (n, m, 4)
        q = self.q(x)
        out = torch.zeros_like(x)
        for i in range(x.shape[0]):  # HAZARD
            a = torch.softmax(q[i] @ x[i].mT / math.sqrt(4), dim=-1)
            out[i] = a @ x[i]
        return out


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.q = nn.Linear(4, 4, bias=False).double()

    def forward(self, x):
        q = self.q(x)
        out = torch.zeros_like(x)
        for i in range(x.shape[1]):
            a = torch.softmax((q[:, i : i + 1] @ x.mT) / math.sqrt(x.shape[-1]), dim=-1)
            out[:, i] = (a @ x)[:, 0]
        return out


def examples():
    return {"x": torch.randn(4, 3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)}

"""The input is clipped through a numpy view: no op is recorded."""

import numpy as np
import torch
from torch import nn

CHECK = "data read"

D = torch.float64


class Hazard(nn.Module):
    def __init__(self):
        super().__init__()
        self.coef = nn.Parameter(torch.tensor([1.0, -0.5, 0.2], dtype=D))

    def forward(self, fraction):
        y = fraction.clone()
        view = y.detach().numpy()  # HAZARD
        np.clip(view, 0.0, 1.0, out=view)
        return self.coef[0] + self.coef[1] * y + self.coef[2] * y**2


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        self.coef = nn.Parameter(torch.tensor([1.0, -0.5, 0.2], dtype=D))

    def forward(self, fraction):
        y = fraction.clone()
        view = y.detach()
        torch.clip(view, 0.0, 1.0, out=view)
        return self.coef[0] + self.coef[1] * y + self.coef[2] * y**2


def examples():
    return {"fraction": R(4, 3)}


def R(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

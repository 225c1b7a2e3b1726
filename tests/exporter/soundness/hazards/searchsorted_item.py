"""The table interval as a Python index."""

import torch
from torch import nn

CHECK = "data read"


class Hazard(nn.Module):
    """Linear table look-up around the mean operating point."""

    def __init__(self):
        super().__init__()
        self.register_buffer("x", torch.tensor([0.0, 1.0, 2.0, 4.0], dtype=torch.float64))
        self.register_buffer("y", torch.tensor([0.0, 2.0, 3.0, 3.5], dtype=torch.float64))

    def forward(self, u):
        i = torch.searchsorted(self.x, u.mean()).clamp(1, 3).item()  # HAZARD
        x0, x1 = self.x[i - 1].item(), self.x[i].item()
        w = (u - x0) / (x1 - x0)
        return self.y[i - 1] * (1 - w) + self.y[i] * w


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("x", torch.tensor([0.0, 1.0, 2.0, 4.0], dtype=torch.float64))
        self.register_buffer("y", torch.tensor([0.0, 2.0, 3.0, 3.5], dtype=torch.float64))

    def forward(self, u):
        i = torch.searchsorted(self.x, u.contiguous()).clamp(1, 3)
        x0, x1 = self.x[i - 1], self.x[i]
        w = (u - x0) / (x1 - x0)
        last = self.y[self.y.argmax().item()]
        return torch.minimum(self.y[i - 1] * (1 - w) + self.y[i] * w, last)


def examples():
    return {"u": torch.tensor([0.2, 0.4, 0.3, 0.5], dtype=torch.float64)}

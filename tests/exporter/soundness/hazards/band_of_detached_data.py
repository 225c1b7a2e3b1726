"""A band that is asked of ``x.data``, which the tracer does not follow."""

import torch
from torch import nn

CHECK = "data read"


class Hazard(nn.Module):
    def forward(self, t):
        if 4.95 < float(t.data.mean()) < 5.05:  # HAZARD
            return t * 2
        return t * 1.0


class Sound(nn.Module):
    def forward(self, t):
        return torch.where((t.detach() > 4.95) & (t.detach() < 5.05), t * 2, t)


def examples():
    return {"t": torch.tensor([[20.3], [25.1]], dtype=torch.float64)}

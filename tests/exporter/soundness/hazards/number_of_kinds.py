"""A count of different codes, which is the same for all examples."""

import torch
from torch import nn

CHECK = "data read"


class Hazard(nn.Module):
    def forward(self, x, kind):
        kinds = torch.cat([kind, torch.arange(4)])
        return x / len(torch.unique(kinds))  # HAZARD


class Sound(nn.Module):
    def forward(self, x, kind):
        return x / (1.0 + kind.to(x.dtype))


def examples():
    return {"x": torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64), "kind": torch.tensor([0, 1, 2, 3])}

"""An assertion that the input is finite."""

import torch
from torch import nn

CHECK = "data read"


class Hazard(nn.Module):
    """Magnetic moment energy in a field."""

    def __init__(self):
        super().__init__()
        self.g = nn.Parameter(torch.tensor([1.0, 1.1, 0.9], dtype=torch.float64))

    def forward(self, m, B):
        assert m.shape[-1] == 3 and B.shape[-1] == 3
        assert torch.isfinite(B).all(), "field is not finite"  # HAZARD
        e = -(self.g * m * B).sum(-1)
        t = torch.linalg.cross(m, B)
        return torch.nan_to_num(e), torch.nan_to_num(t)


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        self.g = nn.Parameter(torch.tensor([1.0, 1.1, 0.9], dtype=torch.float64))

    def forward(self, m, B):
        assert m.shape[-1] == 3 and B.shape[-1] == 3
        assert m.shape[0] == B.shape[0], "one field for each moment"
        assert torch.isfinite(self.g).all()
        e = -(self.g * m * B).sum(-1)
        t = torch.linalg.cross(m, B)
        return torch.nan_to_num(e), torch.nan_to_num(t)


def examples():
    g = torch.Generator().manual_seed(0)
    return {
        "m": torch.randn(4, 3, generator=g, dtype=torch.float64),
        "B": torch.randn(4, 3, generator=g, dtype=torch.float64),
    }

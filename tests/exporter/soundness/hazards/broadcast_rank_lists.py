"""The number of rows in stacked nested lists."""

import torch
from torch import nn

CHECK = "batch size"


class Hazard(nn.Module):
    """Pairwise overlap of Gaussians of a molecule's shells, sample by sample."""

    def __init__(self):
        super().__init__()
        self.zeta = nn.Parameter(torch.tensor([0.5, 1.0], dtype=torch.float64))

    def overlap(self, r, a, b):
        p = a * b / (a + b)
        return torch.exp(-p * r * r)

    def forward(self, r):
        blocks = []
        for i in range(len(r.unbind())):  # HAZARD
            blocks.append(
                torch.stack(
                    [torch.stack([self.overlap(r[i], a, b) for a in self.zeta.unbind()]) for b in self.zeta.unbind()]
                )
            )
        return torch.stack(blocks)


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        self.zeta = nn.Parameter(torch.tensor([0.5, 1.0], dtype=torch.float64))

    def overlap(self, r, a, b):
        p = a * b / (a + b)
        return torch.exp(-p * r * r)

    def forward(self, r):
        blocks = []
        for i in range(len(self.zeta.unbind())):
            blocks.append(torch.stack([self.overlap(r, self.zeta[i], b) for b in self.zeta.unbind()], dim=-1))
        return torch.stack(blocks, dim=-1)


def examples():
    return {"r": torch.tensor([1.0, 1.2, 1.4, 1.9], dtype=torch.float64)}

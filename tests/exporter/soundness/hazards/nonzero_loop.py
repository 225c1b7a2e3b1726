"""The number of bonds found, looped over in Python."""

import torch
from torch import nn

CHECK = "data read"


class Hazard(nn.Module):
    """Bond energy of a cluster: pairs within the cutoff, one by one."""

    WHOLE = True

    def __init__(self):
        super().__init__()
        self.D = nn.Parameter(torch.tensor(1.5, dtype=torch.float64))
        self.rc = 1.5

    def forward(self, pos):
        d = (pos[:, None] - pos[None]).pow(2).sum(-1).add(1e-12).sqrt()
        pairs = torch.triu(d < self.rc, diagonal=1).nonzero()
        e = torch.zeros(pos.shape[0], dtype=pos.dtype)
        for k in range(pairs.shape[0]):  # HAZARD
            i, j = pairs[k].unbind(0)
            e[i] = e[i] - self.D * torch.exp(-d[i, j])
        return e


class Sound(nn.Module):
    WHOLE = True

    def __init__(self):
        super().__init__()
        self.D = nn.Parameter(torch.tensor(1.5, dtype=torch.float64))
        self.rc = 1.5

    def forward(self, pos):
        d = (pos[:, None] - pos[None]).pow(2).sum(-1).add(1e-12).sqrt()
        pairs = torch.triu(d < self.rc, diagonal=1).nonzero()
        i, j = pairs.unbind(1)
        e = torch.zeros(pos.shape[0], dtype=pos.dtype)
        e = e.index_add(0, i, -self.D * torch.exp(-d[i, j]))
        return e / (pairs.shape[0] + 1)


def examples():
    return {"pos": torch.rand(5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 2}

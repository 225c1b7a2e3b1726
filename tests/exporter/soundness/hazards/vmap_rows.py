"""The batch size inside torch.vmap."""

import torch
from torch import nn

CHECK = "batch size"


class Hazard(nn.Module):
    """Energy of a spring chain, written for one sample and vmapped."""

    def __init__(self):
        super().__init__()
        self.k = nn.Parameter(torch.tensor(1.4, dtype=torch.float64))

    def energy(self, q):
        d = q[1:] - q[:-1]
        return 0.5 * self.k * (d**2).sum() + q * torch.linalg.norm(q)  # HAZARD

    def forward(self, q):
        return torch.vmap(self.energy)(q)


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        self.k = nn.Parameter(torch.tensor([1.4, 2.0, 0.3], dtype=torch.float64))

    def energy(self, q):
        d = q[:, 1:] - q[:, :-1]
        members = torch.vmap(lambda k: 0.5 * k * (d**2).sum(-1), out_dims=1)(self.k)
        return members + torch.linalg.norm(q, dim=1, keepdim=True)

    def forward(self, q):
        return self.energy(q)


def examples():
    return {"q": torch.randn(4, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)}

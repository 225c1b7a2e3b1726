"""The dict of outputs is ordered by the mean energy (is_nonzero: no warning), values too."""

import torch
from torch import nn

CHECK = "data read"

D = torch.float64


class Hazard(nn.Module):
    def __init__(self):
        super().__init__()
        self.fcc, self.bcc = nn.Linear(3, 1).double(), nn.Linear(3, 1).double()

    def forward(self, descriptor):
        e = {"fcc": self.fcc(descriptor), "bcc": self.bcc(descriptor)}
        names = ["fcc", "bcc"]
        if torch.is_nonzero(e["fcc"].mean() > e["bcc"].mean()):  # HAZARD
            names.reverse()
        return {"stable": e[names[0]], "other": e[names[1]]}


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        self.fcc, self.bcc = nn.Linear(3, 1).double(), nn.Linear(3, 1).double()

    def forward(self, descriptor):
        e = {"fcc": self.fcc(descriptor), "bcc": self.bcc(descriptor)}
        names = sorted(set(e), key=len)
        names.sort()
        low = torch.minimum(e[names[0]], e[names[1]])
        return {"stable": low, "other": e["fcc"] + e["bcc"] - low}


def examples():
    return {"descriptor": R(4, 3)}


def R(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

"""Segment lengths as a Python list for torch.split."""

import torch
from torch import nn

CHECK = "data read"


class Hazard(nn.Module):
    """Per-molecule softmax of atomic charges; atoms are sorted by molecule."""

    WHOLE = True

    def __init__(self):
        super().__init__()
        self.beta = nn.Parameter(torch.tensor(1.3, dtype=torch.float64))
        self.nmol = 3

    def forward(self, chi, mol):
        sizes = torch.bincount(mol, minlength=self.nmol).tolist()  # HAZARD
        parts = torch.split(self.beta * chi, sizes)
        return torch.cat([torch.softmax(p, dim=0) for p in parts])


class Sound(nn.Module):
    WHOLE = True

    def __init__(self):
        super().__init__()
        self.beta = nn.Parameter(torch.tensor(1.3, dtype=torch.float64))
        self.nmol = 3

    def forward(self, chi, mol):
        sizes = torch.bincount(mol, minlength=self.nmol)
        e = torch.exp(self.beta * (chi - chi.max()))
        tot = torch.zeros(self.nmol, dtype=chi.dtype).index_add(0, mol, e)
        return e / tot[mol] * (sizes[mol] > 0).to(chi.dtype)


def examples():
    return {
        "chi": torch.randn(6, generator=torch.Generator().manual_seed(0), dtype=torch.float64),
        "mol": torch.tensor([0, 0, 1, 1, 1, 2]),
    }

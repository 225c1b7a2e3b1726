"""The potential of a chain: harmonic bonds, and a small network of the distances beyond them.

    torchferry export examples/hosts/chain.py:make_model --derivative energy:positions --format c -o chain

Positions are in nm, the energy is in kJ/mol.
"""

from __future__ import annotations

import torch
from torch import nn

import torchferry

ATOMS = 8
# nm, kJ/mol/nm^2: a bond of carbons.
LENGTH, STIFFNESS = 0.15, 2.0e5
F = torch.float64


class Chain(nn.Module):
    """Energy of the positions of all atoms."""

    signature = torchferry.Signature.of({"positions": (ATOMS, 3)}, {"energy": ()})

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.network = nn.Sequential(nn.Linear(ATOMS - 2, 8), nn.Tanh(), nn.Linear(8, 1)).to(F)
        start = torch.zeros(16, ATOMS, 3, dtype=F)
        start[:, :, 0] = LENGTH * torch.arange(ATOMS)
        self.__dict__["example_inputs"] = {"positions": start + 0.01 * torch.randn(16, ATOMS, 3, dtype=F)}

    def forward(self, positions: torch.Tensor) -> torch.Tensor:
        bonds = (positions[:, 1:] - positions[:, :-1]).square().sum(-1).sqrt()
        seconds = (positions[:, 2:] - positions[:, :-2]).square().sum(-1).sqrt()
        return 0.5 * STIFFNESS * (bonds - LENGTH).square().sum(-1) + 5.0 * self.network(10 * seconds)[:, 0]


def make_model() -> nn.Module:
    return Chain()

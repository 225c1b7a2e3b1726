"""Models for the native clients: shapes of every rank, parameters, float32, one that raises, one without a batch."""

from __future__ import annotations

import torch
from torch import nn

import torchferry


class Elastic(nn.Module):
    """``force = stiffness * F^T``, ``pushed = F v + shift``, ``energy = s * sum(F * F)``: nothing is symmetric."""

    signature = torchferry.Signature.of(
        {"F": (3, 3), "v": (3,), "s": ()}, {"force": (3, 3), "pushed": (3,), "energy": ()}
    )

    def __init__(self) -> None:
        super().__init__()
        self.stiffness = nn.Parameter(torch.tensor(2.5, dtype=torch.float64))
        self.shift = nn.Parameter(torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64))

    def forward(self, F, v, s):
        force = self.stiffness * F.transpose(-1, -2)
        pushed = (F * v.unsqueeze(-2)).sum(-1) + self.shift
        return {"force": force, "pushed": pushed, "energy": s * (F * F).sum((-1, -2))}


class Single(nn.Module):
    """float32, and an output that is an input."""

    signature = torchferry.Signature.of({"x": (4,), "y": (4,)}, {"sum": (4,), "same": (4,)}, dtype="float32")

    def forward(self, x, y):
        return {"sum": x + y, "same": x.clone()}


class Picks(nn.Module):
    """Raises inside, for an index that is out of range."""

    def forward(self, table, index):
        return {"picked": table.gather(-1, index.unsqueeze(-1)).squeeze(-1)}


def picks():
    table = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], dtype=torch.float64)
    return Picks(), {"table": table, "index": torch.tensor([0, 2])}


class Conjugate(nn.Module):
    """torch conjugates lazily: the memory of the output holds the other numbers."""

    signature = torchferry.Signature.of({"z": ()}, {"w": ()}, dtype="complex128")

    def forward(self, z):
        return {"w": (3 * z).conj()}


class Whole(nn.Module):
    """Fixed shapes: no dimension is a batch."""

    signature = torchferry.Signature.of({"A": (2, 3), "b": (3,)}, {"x": (2,)}, batch_ndim=0)

    def forward(self, A, b):
        return {"x": A @ b}

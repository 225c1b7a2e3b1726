"""Robertson's stiff kinetics: right-hand side and Jacobian for the integrators beside this file.

``da/dt = -0.04 a + 1e4 b c``, ``dc/dt = 3e7 b^2``, ``db/dt = -da/dt - dc/dt`` (H. H. Robertson, The solution of a set
of reaction rate equations, 1966). Export it with its Jacobian:

    torchferry export examples/solvers/robertson.py:make_model --derivative rate:y -o robertson.pt
"""

from __future__ import annotations

import torch
from torch import nn

from torchferry import Signature


class Robertson(nn.Module):
    signature = Signature.of({"y": (3,)}, {"rate": (3,)})

    def __init__(self) -> None:
        super().__init__()
        self.k = nn.Parameter(torch.tensor([0.04, 1e4, 3e7], dtype=torch.float64))
        # On the way of the solution.
        self.example_inputs = {"y": torch.tensor([[1.0, 0.0, 0.0], [0.9, 2e-5, 0.1], [0.2, 1e-6, 0.8]]).double()}

    def forward(self, y):
        a, b, c = y.unbind(-1)
        first = self.k[0] * a - self.k[1] * b * c
        second = self.k[2] * b * b
        return torch.stack([-first, first - second, second], -1)


def make_model() -> nn.Module:
    return Robertson()

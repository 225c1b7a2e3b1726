"""J2 plasticity with linear isotropic hardening as an implicit update: backward Euler, solved by Newton's method.

    torchferry export examples/return_map.py:make_model -o return_map.pt --derivative all

Strain and stress are in Mandel notation, (xx, yy, zz, sqrt 2 yz, sqrt 2 xz, sqrt 2 xy); stresses are in MPa. The
equations are those of Simo and Hughes, Computational Inelasticity (1998), box 3.1. That the yield function or the
plastic increment is zero is written with the Fischer-Burmeister function, so that one system serves elastic and plastic
steps.
"""

from __future__ import annotations

import torch
from torch import nn

import torchferry

F = torch.float64


class Equations(nn.Module):
    """Residuals of stress and equivalent plastic strain at the end of a step."""

    signature = torchferry.Signature.of(
        {"stress": (6,), "ep": (), "strain": (6,), "strain~1": (6,), "stress~1": (6,), "ep~1": ()},
        {"stress_residual": (6,), "ep_residual": ()},
    )

    identity: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.bulk = nn.Parameter(torch.tensor(166_667.0, dtype=F))
        self.shear = nn.Parameter(torch.tensor(76_923.0, dtype=F))
        self.yield_stress = nn.Parameter(torch.tensor(250.0, dtype=F))
        self.hardening = nn.Parameter(torch.tensor(2_000.0, dtype=F))
        self.register_buffer("identity", torch.tensor([1.0, 1.0, 1.0, 0.0, 0.0, 0.0], dtype=F))

    def forward(
        self,
        stress: torch.Tensor,
        ep: torch.Tensor,
        strain: torch.Tensor,
        old_strain: torch.Tensor,
        old_stress: torch.Tensor,
        old_ep: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        deviator = stress - stress @ self.identity[:, None] / 3 * self.identity
        # Away from zero, where its direction is not defined.
        norm = (deviator.square().sum(-1, keepdim=True) + 1e-12).sqrt()
        flow = 1.5**0.5 * deviator / norm
        increment = strain - old_strain - (ep - old_ep)[:, None] * flow
        volume = increment @ self.identity[:, None]
        trial = old_stress + self.bulk * volume * self.identity
        trial = trial + 2 * self.shear * (increment - volume / 3 * self.identity)
        excess = (1.5**0.5 * norm[:, 0] - self.yield_stress - self.hardening * ep) / (3 * self.shear)
        rate = ep - old_ep
        # a >= 0, b >= 0, a b = 0 (Fischer, Optimization 24, 1992).
        complementary = rate - excess - (rate.square() + excess.square() + 1e-24).sqrt()
        return (stress - trial) / (2 * self.shear), complementary


def make_model() -> torchferry.ImplicitUpdate:
    model = torchferry.ImplicitUpdate(
        Equations(),
        ["stress", "ep"],
        settings=torchferry.Settings(abs_tol=1e-12, rel_tol=1e-10, max_its=30),
        name="return_map",
    )
    strain = 5e-3 * (2 * torch.rand(64, 6, generator=torch.Generator().manual_seed(0), dtype=F) - 1)
    strain[::2] /= 20
    before = {"strain~1": (64, 6), "stress~1": (64, 6), "ep~1": (64,)}
    examples = {"strain": strain, **{name: torch.zeros(shape, dtype=F) for name, shape in before.items()}}
    model.__dict__["example_inputs"] = examples
    return model

"""J2 plasticity with linear isotropic hardening in closed form: the radial return, without a Newton loop.

    torchferry export examples/radial_return.py:make_model -o radial_return.pt --derivative stress:strain

Strain and stress are in Mandel notation; stresses are in MPa. Simo and Hughes, Computational Inelasticity (1998),
box 3.1.
"""

from __future__ import annotations

import torch
from torch import nn

import torchferry

F = torch.float64


class RadialReturn(nn.Module):
    """The stress and the equivalent plastic strain at the end of a step, from the plastic strain before it."""

    signature = torchferry.Signature.of(
        {"strain": (6,), "plastic~1": (6,), "ep~1": ()}, {"stress": (6,), "plastic": (6,), "ep": ()}
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
        self, strain: torch.Tensor, old_plastic: torch.Tensor, old_ep: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        elastic = strain - old_plastic
        volume = (elastic * self.identity).sum(-1, keepdim=True)
        deviator = 2 * self.shear * (elastic - volume / 3 * self.identity)
        norm = (deviator.square().sum(-1) + 1e-24).sqrt()
        excess = 1.5**0.5 * norm - self.yield_stress - self.hardening * old_ep
        rate = torch.where(excess > 0, excess / (3 * self.shear + self.hardening), torch.zeros_like(excess))
        flow = 1.5**0.5 * deviator / norm.unsqueeze(-1)
        increment = rate.unsqueeze(-1) * flow
        stress = self.bulk * volume * self.identity + deviator - 2 * self.shear * increment
        return stress, old_plastic + increment, old_ep + rate


def make_model() -> RadialReturn:
    model = RadialReturn()
    strain = 5e-3 * (2 * torch.rand(64, 6, generator=torch.Generator().manual_seed(0), dtype=F) - 1)
    strain[::2] /= 20
    model.__dict__["example_inputs"] = {
        "strain": strain,
        "plastic~1": torch.zeros(64, 6, dtype=F),
        "ep~1": torch.zeros(64, dtype=F),
    }
    return model

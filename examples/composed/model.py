"""Small-strain elasticity and its energy, as torch modules wired by variable name.

torchferry export examples/composed/model.py:make_model -o elastic.pt
"""

import torch
from torch import nn

from torchferry import ComposedModel, Signature


class Elasticity(nn.Module):
    """Isotropic Hooke's law in Mandel notation: stress = lambda tr(strain) I + 2 mu strain."""

    signature = Signature.of({"strain": (6,)}, {"stress": (6,)})
    identity: torch.Tensor

    def __init__(self, young: float, poisson: float) -> None:
        super().__init__()
        self.E = nn.Parameter(torch.tensor(young, dtype=torch.float64))
        self.nu = nn.Parameter(torch.tensor(poisson, dtype=torch.float64))
        identity = torch.tensor([1, 1, 1, 0, 0, 0], dtype=torch.float64)
        self.register_buffer("identity", identity)

    def forward(self, strain: torch.Tensor) -> torch.Tensor:
        mu = self.E / (2 * (1 + self.nu))
        lame = self.E * self.nu / ((1 + self.nu) * (1 - 2 * self.nu))
        trace = strain[..., :3].sum(-1, keepdim=True)
        return lame * trace * self.identity + 2 * mu * strain


class Energy(nn.Module):
    """Strain energy density: stress : strain / 2."""

    signature = Signature.of({"stress": (6,), "strain": (6,)}, {"energy": ()})

    def forward(self, stress: torch.Tensor, strain: torch.Tensor) -> torch.Tensor:
        return 0.5 * (stress * strain).sum(-1)


def make_model() -> ComposedModel:
    # The order of the list does not matter: names decide.
    return ComposedModel([Energy(), Elasticity(210e3, 0.3)], name="elastic", additional_outputs=["stress"])

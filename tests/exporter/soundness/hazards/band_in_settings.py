"""A narrow band whose limits are in a settings object."""

import dataclasses

import torch
from torch import nn

CHECK = "data read"


@dataclasses.dataclass(frozen=True)
class Settings:
    low: float = 273.15
    high: float = 273.17
    latent_heat: float = 334.0


class Hazard(nn.Module):
    def __init__(self):
        super().__init__()
        self.settings = Settings()

    def forward(self, t):
        heat = 4.18 * t
        if self.settings.low < float(t.mean()) < self.settings.high:  # HAZARD
            heat = heat + self.settings.latent_heat
        return heat


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        self.settings = Settings()

    def forward(self, t):
        is_melting = (t > self.settings.low) & (t < self.settings.high)
        return 4.18 * t + torch.where(is_melting, self.settings.latent_heat, 0.0)


def examples():
    return {"t": torch.tensor([[20.3], [25.1]], dtype=torch.float64)}

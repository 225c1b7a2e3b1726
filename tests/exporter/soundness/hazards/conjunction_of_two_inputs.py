"""Two comparisons of which Python makes the second only where the first is true."""

import torch
from torch import nn

CHECK = "data read"


class Hazard(nn.Module):
    """Strength that is lost in a fire without air."""

    def forward(self, temperature, oxygen):
        strength = 250.0 - 0.1 * temperature
        if temperature.max() > 900.0 and oxygen.min() < 0.01:  # HAZARD
            strength = strength * 0.5
        return strength


class Sound(nn.Module):
    def forward(self, temperature, oxygen):
        strength = 250.0 - 0.1 * temperature
        return torch.where((temperature > 900.0) & (oxygen < 0.01), strength * 0.5, strength)


def examples():
    return {
        "temperature": torch.tensor([[20.0], [80.0], [300.0]], dtype=torch.float64),
        "oxygen": torch.tensor([[0.2], [0.21], [0.19]], dtype=torch.float64),
    }

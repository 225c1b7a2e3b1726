"""A guard for a code that no example has."""

import torch
from torch import nn

CHECK = "data read"


class Hazard(nn.Module):
    """Load factors by kind of element; kind 8, a spring, has a part of its own."""

    def __init__(self):
        super().__init__()
        self.register_buffer("factors", torch.linspace(1, 2, 16, dtype=torch.float64))

    def forward(self, load, kind):
        result = load * self.factors[kind]
        is_spring = kind == 8
        if is_spring.any():  # HAZARD
            result = result + 1.0 * is_spring
        return result


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("factors", torch.linspace(1, 2, 16, dtype=torch.float64))

    def forward(self, load, kind):
        return load * self.factors[kind] + 1.0 * (kind == 8)


def examples():
    return {"load": torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64), "kind": torch.tensor([0, 1, 2, 3])}

"""A loop over elements of which no example has one."""

import torch
from torch import nn

CHECK = "data read"


class Hazard(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("factors", torch.linspace(1, 2, 16, dtype=torch.float64))

    def forward(self, load, kind):
        result = load * self.factors[kind]
        springs = torch.nonzero(kind == 8).flatten()
        for i in range(springs.numel()):  # HAZARD
            result = result.index_add(0, springs[i : i + 1], result.new_ones(1))
        return result


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("factors", torch.linspace(1, 2, 16, dtype=torch.float64))

    def forward(self, load, kind):
        return load * self.factors[kind] + (kind == 8).to(load.dtype)


def examples():
    return {"load": torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64), "kind": torch.tensor([0, 1, 2, 3])}

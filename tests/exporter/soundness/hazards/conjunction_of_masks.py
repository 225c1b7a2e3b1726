"""Two masks, of which all of one and none of the other decide."""

import torch
from torch import nn

CHECK = "data read"


class Hazard(nn.Module):
    def forward(self, flow, is_open, is_frozen):
        rate = torch.where(is_open, flow, 0.5 * flow)
        if is_open.all() and not is_frozen.any():  # HAZARD
            rate = rate + 1.0
        return rate


class Sound(nn.Module):
    def forward(self, flow, is_open, is_frozen):
        return torch.where(is_open & ~is_frozen, flow + 1.0, 0.5 * flow)


def examples():
    return {
        "flow": torch.linspace(0, 1, 6, dtype=torch.float64),
        "is_open": torch.tensor([True, False, True, False, True, False]),
        "is_frozen": torch.tensor([True, True, False, False, True, False]),
    }

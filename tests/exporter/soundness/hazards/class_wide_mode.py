"""A class method sets for all models how they compute."""

import torch
from torch import nn

CHECK = "settings"


class Units:
    unit = 2.0
    log = False

    @classmethod
    def use(cls, unit):
        cls.unit = unit


class Hazard(nn.Module):
    def forward(self, length):
        return length * Units.unit  # HAZARD


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        self.unit = Units.unit

    def forward(self, length):
        return length * self.unit + float(Units.log) * 0


def examples():
    return {"length": torch.linspace(0, 1, 12, dtype=torch.float64).reshape(4, 3)}

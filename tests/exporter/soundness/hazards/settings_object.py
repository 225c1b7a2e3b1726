"""An object holds settings, and a context manager changes them."""

import contextlib

import torch
from torch import nn

CHECK = "settings"


class Settings:
    unit = 1.0


SETTINGS = Settings()
SETTINGS.unit = 2.0


@contextlib.contextmanager
def units_of(unit):
    before = SETTINGS.unit
    SETTINGS.unit = unit
    yield
    SETTINGS.unit = before


class Hazard(nn.Module):
    def forward(self, length):
        return length * SETTINGS.unit  # HAZARD


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        self.unit = SETTINGS.unit

    def forward(self, length):
        return length * self.unit + 0.0


def examples():
    return {"length": torch.linspace(0, 1, 12, dtype=torch.float64).reshape(4, 3)}

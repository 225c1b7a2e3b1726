"""Units are an option in a dict, which a function of the file sets."""

import torch
from torch import nn

CHECK = "settings"

OPTIONS = {"unit": 2.0, "log": 0}


def use_unit(unit):
    OPTIONS["unit"] = unit


def log(level):
    OPTIONS.update(log=level)


class Hazard(nn.Module):
    def forward(self, length):
        if OPTIONS["log"]:
            print("called")
        return length * OPTIONS["unit"]  # HAZARD


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        self.unit = OPTIONS["unit"]

    def forward(self, length):
        return length * self.unit + 0 * len(OPTIONS)


def examples():
    return {"length": torch.linspace(0, 1, 12, dtype=torch.float64).reshape(4, 3)}

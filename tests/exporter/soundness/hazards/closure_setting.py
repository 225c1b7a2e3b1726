"""A function that is returned beside the model sets the scale that the model's closure reads."""

import torch
from torch import nn

CHECK = "settings"

D = torch.float64


def make_hazard():
    scale = 1.0

    def set_scale(value):
        nonlocal scale
        scale = value

    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3).double()
            self.set_scale = set_scale

        def forward(self, x):
            return scale * torch.tanh(self.layer(x))  # HAZARD

    return Scaled()


def make_sound():
    scale, options = 1.0, {"scale": 2.0}

    def describe():
        scale = "another function's own variable"
        return scale.title()

    def initialize():
        # Nobody calls it later.
        nonlocal scale
        scale = 2.0

    initialize()

    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3).double()
            self.text = describe()

        def forward(self, x):
            return scale * options["scale"] * torch.tanh(self.layer(x))

    return Scaled()


def Hazard():
    return make_hazard()


def Sound():
    return make_sound()


def examples():
    return {"x": R(4, 3)}


def R(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

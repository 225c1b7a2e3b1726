"""A lambda sets an option that two functions around the model hold."""

import torch
from torch import nn

CHECK = "settings"

D = torch.float64


def make(is_set_later):
    options = {"scale": 2.0}
    setter = lambda value: options.update(scale=value)  # noqa: E731

    def make_law():
        class Law(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(3, 3).double()
                self.scale = options["scale"]

            def forward(self, x):
                scale = options["scale"] if is_set_later else self.scale  # HAZARD
                return scale * torch.tanh(self.layer(x))

        return Law()

    return make_law(), setter


def Hazard():
    return make(True)[0]


def Sound():
    return make(False)[0]


def examples():
    return {"x": R(4, 3)}


def R(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

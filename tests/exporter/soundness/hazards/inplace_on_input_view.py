"""A view of the input is clamped, writing into the caller's memory."""

import torch
from torch import nn

CHECK = "side effect"

D = torch.float64


class Hazard(nn.Module):
    def __init__(self):
        super().__init__()
        self.moduli = nn.Parameter(torch.tensor([1.0, 0.3, 0.6], dtype=D))

    def forward(self, gradient):
        flat = gradient.reshape(gradient.shape[0], 9)
        diag = flat[:, ::4]
        diag.sub_(1.0)  # HAZARD
        volume = diag.sum(-1, keepdim=True)
        return self.moduli * volume + (flat**2).sum(-1, keepdim=True)


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        self.moduli = nn.Parameter(torch.tensor([1.0, 0.3, 0.6], dtype=D))

    def forward(self, gradient):
        sym = 0.5 * (gradient + gradient.transpose(1, 2))
        flat = sym.reshape(gradient.shape[0], 9)
        diag = flat[:, ::4]
        diag.sub_(1.0)
        volume = diag.sum(-1, keepdim=True)
        return self.moduli * volume + (flat**2).sum(-1, keepdim=True)


def examples():
    return {"gradient": R(4, 3, 3)}


def R(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

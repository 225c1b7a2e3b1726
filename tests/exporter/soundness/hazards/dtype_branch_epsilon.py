"""The softening depends on x.dtype, so the file saved from float64 treats float32 otherwise."""

import torch
from torch import nn

CHECK = "dtype"

D = torch.float64


class Hazard(nn.Module):
    def forward(self, r, charge):
        eps = 1e-10 if r.dtype == torch.float64 else 1e-2  # HAZARD
        d2 = (r**2).sum(-1)
        inv = 1.0 / torch.sqrt(d2 + eps)
        damped = inv * (1 - torch.exp(-d2 * 4))
        return (charge * damped).sum(-1)


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("eps", torch.tensor(1e-10, dtype=D))

    def forward(self, r, charge):
        r = r.to(self.eps.dtype)
        if self.eps.dtype == torch.float32:
            r = r.clamp(-1e18, 1e18)
        d2 = (r**2).sum(-1)
        inv = 1.0 / torch.sqrt(d2 + self.eps)
        damped = inv * (1 - torch.exp(-d2 * 4))
        return (charge * damped).sum(-1)


def examples():
    return {"r": R(4, 5, 3), "charge": R(4, 5, seed=1)}


def R(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

"""A state buffer is updated in place with copy_: calls depend on each other and on the trace's own warm-up."""

import torch
from torch import nn

CHECK = "side effect"

D = torch.float64


class Hazard(nn.Module):
    """Exponential filter with its state in a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("state", torch.zeros(3, dtype=D))
        self.gain = nn.Parameter(torch.tensor([0.2, 0.4, 0.6], dtype=D))

    def forward(self, signal):
        new = (1 - self.gain) * self.state + self.gain * signal.mean(0)
        self.state.copy_(new.detach())  # HAZARD
        return signal - self.state


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("state", torch.zeros(3, dtype=D))
        self.gain = nn.Parameter(torch.tensor([0.2, 0.4, 0.6], dtype=D))

    def forward(self, signal):
        state = self.state.clone().expand_as(signal).contiguous()
        new = (1 - self.gain) * state + self.gain * signal
        state.copy_(new.detach())
        return signal - state


def examples():
    return {"signal": R(4, 3)}


def R(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

"""The gradient of a mean over the batch, scaled back by its size as a Python number."""

import torch
from torch import nn

CHECK = "batch size"

D = torch.float64


class Hazard(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 4, dtype=D)

    def scaled(self, gradient):
        return gradient * float(len(gradient))  # HAZARD

    def forward(self, x):
        with torch.enable_grad():
            z = x.detach().requires_grad_(True)
            torch.tanh(self.inner(z)).sum(-1).mean().backward()
        self.inner.zero_grad()
        return self.scaled(z.grad)


class Sound(Hazard):
    def scaled(self, gradient):
        return gradient * gradient.shape[0]


def examples():
    return {"x": torch.rand(4, 3, generator=torch.Generator().manual_seed(0), dtype=D)}

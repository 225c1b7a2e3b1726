"""Small implicit models: a step of ``dx/dt = -k x^3`` by backward Euler, and what can be wrong with one."""

from __future__ import annotations

import torch
from torch import nn

import torchferry

F = torch.float64
POINTS = {"x~1": torch.tensor([0.5, 2.0, 7.0], dtype=F), "dt": torch.tensor([0.3, 0.1, 2.0], dtype=F)}


class Decay(nn.Module):
    """``x - x~1 + k dt x^3``."""

    signature = torchferry.Signature.of({"x": (), "x~1": (), "dt": ()}, {"x_residual": ()})
    k: torch.Tensor

    def __init__(self, k: float = 2.0) -> None:
        super().__init__()
        self.k = nn.Parameter(torch.tensor(k, dtype=F))

    def forward(self, x: torch.Tensor, old: torch.Tensor, dt: torch.Tensor) -> torch.Tensor:
        return x - old + self.k * dt * x**3


def update(residual: nn.Module | None = None, **more) -> torchferry.ImplicitUpdate:
    model = torchferry.ImplicitUpdate(residual or Decay(), ["x"], **more)
    old = torch.linspace(0.1, 3.0, 12, dtype=F)
    model.__dict__["example_inputs"] = {"x~1": old, "dt": torch.linspace(0.05, 1.0, 12, dtype=F).flip(0)}
    return model


def solved(old: torch.Tensor, dt: torch.Tensor, k: float = 2.0) -> torch.Tensor:
    """The real root, by bisection."""
    low, high = torch.zeros_like(old), old.clone()
    for _ in range(200):
        middle = (low + high) / 2
        above = middle - old + k * dt * middle**3 > 0
        low, high = torch.where(above, low, middle), torch.where(above, middle, high)
    return (low + high) / 2

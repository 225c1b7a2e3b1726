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


class Unordered(nn.Module):
    """``A x + x^3 / 10 - b`` with a matrix of each element's own that has nothing but rounding on its diagonal: no
    two elements exchange the same rows."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.signature = torchferry.Signature.of(
            {"x": (size,), "x~1": (size,), "b": (size,), "turn": ()}, {"x_residual": (size,)}
        )
        phases = torch.randn(size, size, generator=torch.Generator().manual_seed(size), dtype=F)
        self.register_buffer("phases", 3 * phases)
        self.register_buffer("off", 1 - (1 - 1e-14) * torch.eye(size, dtype=F))

    phases: torch.Tensor
    off: torch.Tensor

    def forward(self, x: torch.Tensor, old: torch.Tensor, b: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
        matrix = torch.cos(self.phases + turn[..., None, None]) * self.off
        return (matrix @ x.unsqueeze(-1)).squeeze(-1) + (x**3 - old**3) / 10 - b


def unordered(size: int) -> torchferry.ImplicitUpdate:
    model = torchferry.ImplicitUpdate(Unordered(size), ["x"])
    model.__dict__["example_inputs"] = turned(size, 12, 0)
    return model


def turned(size: int, rows: int, seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "x~1": torch.zeros(rows, size, dtype=F),
        "b": 1e-3 * torch.randn(rows, size, generator=generator, dtype=F),
        "turn": torch.rand(rows, generator=generator, dtype=F),
    }

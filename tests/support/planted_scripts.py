"""TorchScript that no file of ours may hold."""

from __future__ import annotations

import torch


class RunsAtLoad(torch.nn.Module):
    """TorchScript of which ``torch.jit.load`` runs a method, here without an end."""

    def __init__(self) -> None:
        super().__init__()
        self.training = False

    @torch.jit.export
    def __getstate__(self) -> list[int]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return [1]

    @torch.jit.export
    def __setstate__(self, state: list[int]) -> None:
        self.training = False
        count = 0
        while count >= 0:
            count = (count + 1) % 1_000_000

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x

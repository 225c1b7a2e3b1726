"""TorchScript that no file of ours may hold."""

from __future__ import annotations

import torch


class RunsAtLoad(torch.nn.Module):
    """TorchScript of which ``torch.jit.load`` runs a method, which says so."""

    def __init__(self) -> None:
        super().__init__()
        self.training = False

    @torch.jit.export
    def __getstate__(self) -> list[int]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return [1]

    @torch.jit.export
    def __setstate__(self, state: list[int]) -> None:
        self.training = False
        raise RuntimeError("it ran")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class Saves(torch.nn.Module):
    """Writes a file whenever it is called."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.numel() > 0:
            torch.save(x, "it_ran")
        return x


def save_and_return(x: torch.Tensor) -> torch.Tensor:
    torch.save(x, "it_ran")
    return x


class CallsOneThatSaves(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return save_and_return(x)


class Reads(torch.nn.Module):
    """Gives the numbers of a file of the host."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.from_file("numbers", False, 1, dtype=torch.float64)


class Seeds(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(0)
        return x


class Prints(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        print("\\x1b[2J")
        return x

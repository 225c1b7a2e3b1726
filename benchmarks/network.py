"""A small network in float64, as surrogate models of materials have it."""

import torch
from torch import nn


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(7, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 6))

    def forward(self, state: torch.Tensor) -> torch.Tensor:
        return self.layers(state)


def make_model():
    torch.manual_seed(0)
    return Network().double(), {"state": torch.linspace(-1, 1, 84, dtype=torch.float64).reshape(12, 7)}

"""The regularised gain of an ill-conditioned innovation."""

import torch
from torch import nn

CHECK = "data read"


class Hazard(nn.Module):
    """Kalman measurement update for a constant-velocity model."""

    def __init__(self):
        super().__init__()
        self.register_buffer("H", torch.tensor([[1.0, 0.0], [1.0, 1.0]], dtype=torch.float64))
        self.register_buffer("R", torch.eye(2, dtype=torch.float64) * 1e-3)

    def forward(self, x, P, z):
        S = self.H @ P @ self.H.mT + self.R
        if S.abs().amax() > 1e3:  # HAZARD
            S = S + 0.1 * torch.eye(2, dtype=S.dtype)
        K = torch.linalg.solve(S, self.H @ P.mT).mT
        y = z - x @ self.H.mT
        return x + (K @ y.unsqueeze(-1)).squeeze(-1), P - K @ self.H @ P


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("H", torch.tensor([[1.0, 0.0], [1.0, 1.0]], dtype=torch.float64))
        self.register_buffer("R", torch.eye(2, dtype=torch.float64) * 1e-3)

    def forward(self, x, P, z):
        S = self.H @ P @ P.mT @ self.H.mT + self.R
        if self.R.abs().amax() < 1.0:
            S = S + 0.1 * torch.eye(2, dtype=S.dtype)
        K = torch.linalg.solve(S, self.H @ P.mT).mT
        y = z - x @ self.H.mT
        return x + (K @ y.unsqueeze(-1)).squeeze(-1), P - K @ self.H @ P


def examples():
    g = torch.Generator().manual_seed(0)
    A = torch.randn(4, 2, 2, generator=g, dtype=torch.float64)
    return {
        "x": torch.randn(4, 2, generator=g, dtype=torch.float64),
        "P": A @ A.mT + torch.eye(2, dtype=torch.float64),
        "z": torch.randn(4, 2, generator=g, dtype=torch.float64),
    }

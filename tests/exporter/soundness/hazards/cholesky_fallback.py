"""The jitter added when Cholesky fails."""

import torch
from torch import nn

CHECK = "exception"


class Hazard(nn.Module):
    """Log-likelihood of a small Gaussian with the given covariance."""

    def __init__(self):
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(3, dtype=torch.float64))
        self.register_buffer("jit", 1e-2 * torch.eye(3, dtype=torch.float64))

    def forward(self, S, y):
        try:
            L = torch.linalg.cholesky(S)  # HAZARD
        except RuntimeError:
            L = torch.linalg.cholesky(S + self.jit)
        r = torch.linalg.solve_triangular(L, (y - self.mean).unsqueeze(-1), upper=False)
        return -0.5 * r.pow(2).sum((-1, -2)) - L.diagonal(dim1=-2, dim2=-1).log().sum(-1)


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(3, dtype=torch.float64))
        self.register_buffer("jit", 1e-2 * torch.eye(3, dtype=torch.float64))

    def forward(self, S, y):
        L, info = torch.linalg.cholesky_ex(S)
        L2, _ = torch.linalg.cholesky_ex(S + self.jit)
        L = torch.where((info == 0)[:, None, None], L, L2)
        r = torch.linalg.solve_triangular(L, (y - self.mean).unsqueeze(-1), upper=False)
        return -0.5 * r.pow(2).sum((-1, -2)) - L.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def examples():
    g = torch.Generator().manual_seed(0)
    A = torch.randn(4, 3, 3, generator=g, dtype=torch.float64)
    return {"S": A @ A.mT + torch.eye(3, dtype=torch.float64), "y": torch.randn(4, 3, generator=g, dtype=torch.float64)}

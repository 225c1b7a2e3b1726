"""A failing Cholesky raises and the handler adds a shift."""

import torch
from torch import nn

CHECK = "exception"

D = torch.float64


class Hazard(nn.Module):
    def __init__(self):
        super().__init__()
        self.shift = nn.Parameter(torch.tensor(10.0, dtype=D))

    def forward(self, covariance):
        a = 0.5 * (covariance + covariance.transpose(1, 2))
        eye = torch.eye(3, dtype=a.dtype)
        try:
            factor = torch.linalg.cholesky(a + 0.01 * eye)  # HAZARD
        except torch.linalg.LinAlgError:
            factor = torch.linalg.cholesky(a + self.shift * eye)
        return factor


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        self.shift = nn.Parameter(torch.tensor(10.0, dtype=D))

    def forward(self, covariance):
        a = covariance @ covariance.transpose(1, 2)
        eye = torch.eye(3, dtype=a.dtype)
        factor, info = torch.linalg.cholesky_ex(a + 0.01 * eye)
        other, _ = torch.linalg.cholesky_ex(a + self.shift * eye)
        bad = (info > 0)[:, None, None]
        return torch.where(bad, other, factor).tril()


def examples():
    return {"covariance": torch.eye(3, dtype=D).repeat(4, 1, 1) + 0.1 * R(4, 3, 3)}


def R(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

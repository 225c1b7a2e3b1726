"""The blocks of a block Jacobi step are as many as the threads."""

import torch
from torch import nn

CHECK = "outside world"

D = torch.float64


class Hazard(nn.Module):
    def __init__(self):
        super().__init__()
        m = torch.full((6, 6), 0.1, dtype=D) + torch.eye(6, dtype=D)
        self.register_buffer("matrix", m)

    def forward(self, rhs):
        blocks = min(6, torch.get_num_threads())  # HAZARD
        out = []
        for idx in torch.arange(6).chunk(blocks):
            sub = self.matrix[idx][:, idx]
            out.append(rhs[:, idx] @ torch.linalg.inv(sub))
        return torch.cat(out, -1)


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        m = torch.full((6, 6), 0.1, dtype=D) + torch.eye(6, dtype=D)
        self.register_buffer("matrix", m)

    def forward(self, rhs):
        blocks = 3
        self.threads = torch.get_num_threads()
        out = []
        for idx in torch.arange(6).chunk(blocks):
            sub = self.matrix[idx][:, idx]
            out.append(rhs[:, idx] @ torch.linalg.inv(sub))
        return torch.cat(out, -1)


def examples():
    return {"rhs": R(4, 6)}


def R(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

"""The batch size, which is a stride of the transposed copy."""

import torch
from torch import nn

CHECK = "batch size"


class Hazard(nn.Module):
    """Moving average over three time steps of a signal stored time-major."""

    def __init__(self):
        super().__init__()
        self.k = nn.Parameter(torch.tensor([0.25, 0.5, 0.25], dtype=torch.float64))

    def forward(self, sig):  # (n, T)
        tm = sig.t().contiguous()  # (T, n)
        step = tm.stride(0)  # HAZARD
        T = sig.shape[1]
        win = tm.as_strided((T - 2, 3, sig.shape[0]), (step, step, 1))
        return torch.einsum("tkn,k->nt", win, self.k)


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        self.k = nn.Parameter(torch.tensor([0.25, 0.5, 0.25], dtype=torch.float64))

    def forward(self, sig):  # (n, T)
        bm = sig.contiguous()
        step = bm.stride(0)  # T, fixed
        T = sig.shape[1]
        win = bm.as_strided((sig.shape[0], T - 2, 3), (step, 1, 1))
        return torch.einsum("ntk,k->nt", win, self.k)


def examples():
    return {"sig": torch.randn(4, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)}

"""The node count read from the edge list."""

import torch
from torch import nn

CHECK = "data read"


class Hazard(nn.Module):
    """One step of message passing, mean aggregation."""

    WHOLE = True

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.msg = nn.Linear(3, 3).double()

    def forward(self, x, edge):
        src, dst = edge[:, 0], edge[:, 1]
        n = int(dst.max()) + 1  # HAZARD
        agg = torch.zeros(n, 3, dtype=x.dtype).index_add(0, dst.clamp(max=n - 1), self.msg(x[src]))
        mean = agg.sum(0) / n
        return torch.tanh(x + mean)


class Sound(nn.Module):
    WHOLE = True

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.msg = nn.Linear(3, 3).double()

    def forward(self, x, edge):
        src, dst = edge[:, 0], edge[:, 1]
        n = int(x.shape[0])
        agg = torch.zeros(n, 3, dtype=x.dtype).index_add(0, dst.clamp(max=n - 1), self.msg(x[src]))
        mean = agg.sum(0) / n
        return torch.tanh(x + mean)


def examples():
    return {
        "x": torch.randn(5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64),
        "edge": torch.tensor([[0, 1], [1, 2], [2, 3], [3, 0]]),
    }

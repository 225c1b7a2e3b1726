"""The batch size by int() into expand."""

import torch
from torch import nn

CHECK = "batch size"


class Hazard(nn.Module):
    """Cross-attention of learned queries to the tokens of a sample."""

    def __init__(self):
        super().__init__()
        g = torch.Generator().manual_seed(0)
        self.query = nn.Parameter(torch.randn(2, 4, generator=g, dtype=torch.float64))

    def forward(self, tok):
        n = int(tok.size(0))  # HAZARD
        q = self.query.unsqueeze(0).expand(n, -1, -1)
        a = torch.softmax(q @ tok.mT / int(tok.size(-1)) ** 0.5, dim=-1)
        return (a @ tok).flatten(1)


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        g = torch.Generator().manual_seed(0)
        self.query = nn.Parameter(torch.randn(2, 4, generator=g, dtype=torch.float64))

    def forward(self, tok):
        n = tok.size(0)
        q = self.query.unsqueeze(0).expand(n, -1, -1)
        a = torch.softmax(q @ tok.mT / int(tok.size(-1)) ** 0.5, dim=-1)
        return (a @ tok).flatten(1)


def examples():
    return {"tok": torch.randn(4, 3, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)}

"""The batch size by int() into arange."""

import torch
from torch import nn

CHECK = "batch size"


class Hazard(nn.Module):
    """Picks the logit of the labelled class."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.cls = nn.Linear(3, 4)

    def forward(self, x, label):
        logp = torch.log_softmax(self.cls(x), dim=-1)
        rows = torch.arange(int(x.shape[0]))  # HAZARD
        cols = torch.arange(int(logp.shape[1])).expand(x.shape[0], -1)
        picked = logp[rows, label]
        return picked, (cols == label[:, None]).to(logp.dtype)


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.cls = nn.Linear(3, 4)

    def forward(self, x, label):
        logp = torch.log_softmax(self.cls(x), dim=-1)
        rows = torch.arange(x.shape[0])
        cols = torch.arange(int(logp.shape[1])).expand(x.shape[0], -1)
        picked = logp[rows, label]
        return picked, (cols == label[:, None]).to(logp.dtype)


def examples():
    return {
        "x": torch.randn(6, 3, generator=torch.Generator().manual_seed(0)),
        "label": torch.tensor([0, 1, 2, 3, 1, 0]),
    }

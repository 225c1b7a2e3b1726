"""The longest sequence, as a Python slice bound."""

import torch
from torch import nn

CHECK = "data read"


class Hazard(nn.Module):
    """Masked mean of padded sequences, trimmed to the longest one."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.enc = nn.Linear(3, 3).double()

    def forward(self, seq, length):
        L = int(length.max())  # HAZARD
        seq = seq[:, :L]
        t = torch.arange(L)
        keep = (t < length[:, None]).unsqueeze(-1).to(seq.dtype)
        return (torch.tanh(self.enc(seq)) * keep).sum(1) / length[:, None].clamp(min=1)


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.enc = nn.Linear(3, 3).double()

    def forward(self, seq, length):
        L = int(seq.shape[1])
        seq = seq[:, :L]
        t = torch.arange(L)
        keep = (t < length[:, None]).unsqueeze(-1).to(seq.dtype)
        return (torch.tanh(self.enc(seq)) * keep).sum(1) / length[:, None].clamp(min=1)


def examples():
    return {
        "seq": torch.randn(4, 6, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64),
        "length": torch.tensor([1, 2, 3, 2]),
    }

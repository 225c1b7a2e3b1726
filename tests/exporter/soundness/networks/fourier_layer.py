"""Fourier neural operator in 1d: rfft / irfft with complex weights."""

import torch
import torch.nn.functional as F
from torch import nn


class SpectralConv1d(nn.Module):
    def __init__(self, cin, cout, modes):
        super().__init__()
        self.modes, self.cout = modes, cout
        self.weight = nn.Parameter(torch.randn(cin, cout, modes, dtype=torch.cfloat) / (cin * cout))

    def forward(self, x):
        batch = x.shape[0]
        xf = torch.fft.rfft(x)
        out = torch.zeros(batch, self.cout, x.size(-1) // 2 + 1, dtype=torch.cfloat, device=x.device)
        out[:, :, : self.modes] = torch.einsum("bix,iox->box", xf[:, :, : self.modes], self.weight)
        return torch.fft.irfft(out, n=x.size(-1))


class Sound(nn.Module):
    def __init__(self, width=8, modes=5, depth=3):
        super().__init__()
        torch.manual_seed(21)
        self.lift = nn.Linear(2, width)
        self.spec = nn.ModuleList(SpectralConv1d(width, width, modes) for _ in range(depth))
        self.local = nn.ModuleList(nn.Conv1d(width, width, 1) for _ in range(depth))
        self.proj = nn.Sequential(nn.Linear(width, 16), nn.GELU(), nn.Linear(16, 1))

    def grid(self, shape, device):
        g = torch.linspace(0, 1, shape[1], device=device)
        return g.reshape(1, -1, 1).repeat([shape[0], 1, 1])

    def forward(self, u):
        h = torch.cat((u.unsqueeze(-1), self.grid(u.shape, u.device)), dim=-1)
        h = self.lift(h).permute(0, 2, 1)
        last = len(self.spec) - 1
        for k, (s, w) in enumerate(zip(self.spec, self.local)):
            h = s(h) + w(h)
            if k < last:
                h = F.gelu(h)
        return self.proj(h.permute(0, 2, 1)).squeeze(-1)


def examples():
    torch.manual_seed(0)
    return {"u": torch.randn(4, 24)}

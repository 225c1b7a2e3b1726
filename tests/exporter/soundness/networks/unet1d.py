"""U-Net in one dimension with interpolate to the skip's size and time step embedding."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class Double(nn.Sequential):
    def __init__(self, i, o):
        super().__init__(
            nn.Conv1d(i, o, 3, padding=1), nn.GroupNorm(1, o), nn.SiLU(), nn.Conv1d(o, o, 3, padding=1), nn.SiLU()
        )


class Sound(nn.Module):
    def __init__(self, c=6, d_time=8):
        super().__init__()
        torch.manual_seed(30)
        self.d_time = d_time
        self.time = nn.Sequential(nn.Linear(d_time, 4 * c), nn.SiLU(), nn.Linear(4 * c, 4 * c))
        self.d1, self.d2, self.mid = Double(1, c), Double(c, 2 * c), Double(2 * c, 4 * c)
        self.u2, self.u1 = Double(6 * c, 2 * c), Double(3 * c, c)
        self.out = nn.Conv1d(c, 1, 1)

    def embed(self, t):
        half = self.d_time // 2
        freq = torch.exp(-math.log(1000.0) * torch.arange(half, device=t.device) / half)
        ang = t[:, None].float() * freq[None]
        return torch.cat([ang.sin(), ang.cos()], dim=-1)

    def forward(self, x, t):
        s1 = self.d1(x[:, None])
        s2 = self.d2(F.max_pool1d(s1, 2))
        m = self.mid(F.avg_pool1d(s2, 2))
        m = m + self.time(self.embed(t))[:, :, None]
        up = F.interpolate(m, size=s2.shape[-1], mode="linear", align_corners=False)
        up = self.u2(torch.cat([up, s2], dim=1))
        up = F.interpolate(up, size=s1.shape[-1:], mode="nearest")
        if up.shape[-1] != s1.shape[-1]:
            up = F.pad(up, (0, s1.shape[-1] - up.shape[-1]))
        up = self.u1(torch.cat([up, s1], dim=1))
        return self.out(up).squeeze(1)


def examples():
    torch.manual_seed(0)
    return {"x": torch.randn(4, 22), "t": torch.tensor([1, 250, 999, 40])}

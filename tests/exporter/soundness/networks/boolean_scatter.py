"""Two-regime drag law: boolean indexing, results put back; the hazard's assignment meets one row in the example."""

import torch
from torch import nn


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(37)
        self.low = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1)).double()
        self.high = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1)).double()
        self.critical = 1.0

    def table(self, cd, re, roughness):
        weight = torch.tensor([0.25, 0.5, 0.25], dtype=re.dtype, device=re.device)
        table = torch.zeros(re.shape[0], 3, dtype=re.dtype, device=re.device)
        table[:, 0] = cd
        table[:, 1] = cd * roughness
        table[:, 2].copy_(re.log1p())
        table.mul_(weight)
        table += 1.0
        return table


class Sound(Base):
    def forward(self, reynolds, roughness):
        re = reynolds.abs() + 1e-6
        feats = torch.stack([re.log(), roughness], dim=-1)
        turbulent = re > self.critical
        fast = turbulent.nonzero(as_tuple=True)[0]
        slow = (~turbulent).nonzero(as_tuple=True)[0]
        cd = torch.empty_like(re)
        cd = cd.index_copy(0, fast, self.high(feats[fast]).squeeze(-1))
        cd = cd.index_copy(0, slow, 24.0 / re[slow] + self.low(feats[slow]).squeeze(-1))
        clipped = cd.clone().clamp_(-50.0, 50.0)
        return clipped, self.table(cd, re, roughness)


def examples():
    return {
        "reynolds": torch.tensor([0.2, 0.7, 1.9, 0.4, 0.1], dtype=torch.float64),
        "roughness": torch.tensor([0.1, 0.5, 0.3, 0.8, 0.2], dtype=torch.float64),
    }

"""Which expert is chosen, by argmax into a Python index."""

import torch
from torch import nn

CHECK = "data read"


class Hazard(nn.Module):
    """Mixture of constitutive experts, the gate picks one for the load step."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.gate = nn.Linear(3, 4).double()
        self.experts = nn.ModuleList([nn.Linear(3, 2).double() for _ in range(4)])

    def forward(self, x):
        score = torch.softmax(self.gate(x), dim=-1)
        best = int(score.mean(0).argmax())  # HAZARD
        y = self.experts[best](x)
        return y * score[:, best : best + 1]


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.gate = nn.Linear(3, 4).double()
        self.experts = nn.ModuleList([nn.Linear(3, 2).double() for _ in range(4)])

    def forward(self, x):
        score = torch.softmax(self.gate(x), dim=-1)
        best = score.argmax(-1)
        base = int(self.gate.bias.argmax())  # a fixed expert
        y = torch.stack([e(x) for e in self.experts], dim=1)
        y = y.gather(1, best[:, None, None].expand(-1, 1, 2)).squeeze(1) + self.experts[base](x)
        return y * score.gather(1, best[:, None])


def examples():
    return {"x": torch.randn(4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)}

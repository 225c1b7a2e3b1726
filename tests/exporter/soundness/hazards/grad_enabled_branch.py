"""Without grad a hard threshold, with grad a smooth one: the trace keeps the mode of the export."""

import torch
from torch import nn

CHECK = "outside world"

D = torch.float64


class Hazard(nn.Module):
    def __init__(self):
        super().__init__()
        self.yield_stress = nn.Parameter(torch.tensor(0.4, dtype=D))

    def forward(self, trial):
        over = trial - self.yield_stress
        if torch.is_grad_enabled():  # HAZARD
            flow = torch.nn.functional.softplus(over, beta=20.0)
        else:
            flow = torch.relu(over)
        return trial - 0.8 * flow, flow


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        self.yield_stress = nn.Parameter(torch.tensor(0.4, dtype=D))

    def forward(self, trial):
        with torch.no_grad():
            limit = self.yield_stress.clone()
        with torch.set_grad_enabled(False):
            over = trial - limit
        flow = torch.relu(over)
        return trial - 0.8 * flow, flow


def examples():
    return {"trial": R(4, 3)}


def R(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

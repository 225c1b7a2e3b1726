"""Neural ODE, fixed RK4 steps, trajectory stacked; Lotka-Volterra prior plus network, float64."""

import torch
from torch import nn


class Field(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(dim + 1, 24), nn.Tanh(), nn.Linear(24, dim))
        self.log_rates = nn.Parameter(torch.tensor([-0.5, -1.0, -0.7, -1.2]))
        self.evaluations = 0

    def forward(self, t, y):
        self.evaluations += 1
        a, b, c, d = self.log_rates.exp().unbind()
        prey, pred = y.unbind(dim=-1)
        known = torch.stack([a * prey - b * prey * pred, d * prey * pred - c * pred], dim=-1)
        tt = torch.full_like(y[:, :1], t)
        return 0.1 * known + torch.tanh(self.net(torch.cat([y, tt], dim=-1)))


class Sound(nn.Module):
    def __init__(self, horizon=1.0, steps=8):
        super().__init__()
        torch.manual_seed(23)
        self.field = Field(2)
        self.steps, self.dt = steps, horizon / steps
        self.double()

    def forward(self, y0):
        y, t, path = torch.tanh(y0), 0.0, []
        for _ in range(self.steps):
            k1 = self.field(t, y)
            k2 = self.field(t + self.dt / 2, y + self.dt / 2 * k1)
            k3 = self.field(t + self.dt / 2, y + self.dt / 2 * k2)
            k4 = self.field(t + self.dt, y + self.dt * k3)
            y = y + self.dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
            t += self.dt
            path.append(y)
        return torch.stack(path, dim=1), y


def examples():
    torch.manual_seed(0)
    return {"y0": torch.rand(4, 2, dtype=torch.float64) + 0.5}

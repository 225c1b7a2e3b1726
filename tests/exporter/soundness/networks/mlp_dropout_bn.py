"""Tabular regressor: MLP with batch norm and dropout, inputs and targets standardised."""

import torch
from torch import nn


class Sound(nn.Module):
    def __init__(self, d_in=7, widths=(32, 32, 16), d_out=3, p=0.1):
        super().__init__()
        torch.manual_seed(11)
        layers, d = [], d_in
        for w in widths:
            layers += [nn.Linear(d, w), nn.BatchNorm1d(w), nn.SiLU(), nn.Dropout(p)]
            d = w
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(d, d_out)
        self.register_buffer("x_mean", torch.randn(d_in))
        self.register_buffer("x_std", torch.rand(d_in) + 0.5)
        self.register_buffer("y_std", torch.rand(d_out) + 0.5, persistent=False)
        for m in self.modules():
            if isinstance(m, nn.BatchNorm1d):
                m.running_mean.normal_(0, 0.3)
                m.running_var.uniform_(0.5, 2.0)

    def forward(self, x):
        assert x.dim() == 2 and x.shape[1] == self.x_mean.numel(), "expected (batch, features)"
        z = (x - self.x_mean) / self.x_std
        y = self.head(self.body(z)) * self.y_std
        if self.training:
            y = y + 0.01 * torch.randn_like(y)
        return y


def examples():
    torch.manual_seed(0)
    return {"x": torch.randn(5, 7)}

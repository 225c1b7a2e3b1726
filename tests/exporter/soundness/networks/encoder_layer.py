"""Time series classifier on nn.TransformerEncoder with sinusoidal positions as a buffer."""

import math

import torch
from torch import nn


class PositionalEncoding(nn.Module):
    def __init__(self, d, dropout=0.1, max_len=50):
        super().__init__()
        self.dropout = nn.Dropout(p=dropout)
        position = torch.arange(max_len).unsqueeze(1)
        div = torch.exp(torch.arange(0, d, 2) * (-math.log(10000.0) / d))
        pe = torch.zeros(1, max_len, d)
        pe[0, :, 0::2] = torch.sin(position * div)
        pe[0, :, 1::2] = torch.cos(position * div)
        self.register_buffer("pe", pe)

    def forward(self, x):
        x = x + self.pe[:, : x.size(1)]
        return self.dropout(x)


class Sound(nn.Module):
    def __init__(self, features=3, d=16, classes=5):
        super().__init__()
        torch.manual_seed(14)
        self.embed = nn.Linear(features, d)
        self.pos = PositionalEncoding(d)
        layer = nn.TransformerEncoderLayer(d, nhead=2, dim_feedforward=32, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
        self.head = nn.Linear(d, classes)
        self.scale = math.sqrt(d)

    def forward(self, series):
        h = self.embed(series) * self.scale
        h = self.pos(h)
        h = self.encoder(h)
        return self.head(h.mean(dim=1))


def examples():
    torch.manual_seed(0)
    return {"series": torch.randn(4, 12, 3)}

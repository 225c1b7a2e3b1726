"""Two-layer bidirectional GRU plus LSTM, zero initial states sized by the batch."""

import torch
from torch import nn


class Sound(nn.Module):
    def __init__(self, d_in=3, hidden=8, layers=2, d_out=2):
        super().__init__()
        torch.manual_seed(16)
        self.hidden, self.layers = hidden, layers
        self.gru = nn.GRU(d_in, hidden, layers, batch_first=True, bidirectional=True, dropout=0.2)
        self.lstm = nn.LSTM(2 * hidden, hidden, batch_first=True)
        self.fc = nn.Linear(hidden, d_out)

    def init_hidden(self, batch, like):
        return torch.zeros(2 * self.layers, batch, self.hidden, dtype=like.dtype, device=like.device)

    def forward(self, x):
        h0 = self.init_hidden(x.size(0), x)
        seq, _ = self.gru(x, h0)
        hx = x.new_zeros(1, x.shape[0], self.hidden)
        cx = torch.zeros_like(hx)
        seq, (h, c) = self.lstm(seq, (hx, cx))
        return self.fc(seq[:, -1]), h.squeeze(0)


def examples():
    torch.manual_seed(0)
    return {"x": torch.randn(5, 10, 3)}

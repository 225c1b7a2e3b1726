"""Rainfall-runoff LSTM: LSTMCell looped over fixed time steps, static catchment attributes."""

import torch
from torch import nn


class Sound(nn.Module):
    def __init__(self, forcings=4, statics=3, hidden=10):
        super().__init__()
        torch.manual_seed(17)
        self.cell = nn.LSTMCell(forcings + statics, hidden)
        self.init = nn.Linear(statics, 2 * hidden)
        self.dropout = nn.Dropout(0.4)
        self.head = nn.Linear(hidden, 1)
        with torch.no_grad():
            self.cell.bias_hh[hidden : 2 * hidden].fill_(3.0)

    def forward(self, meteo, attributes):
        h, c = self.init(attributes).tanh().chunk(2, dim=-1)
        flows = []
        for t in range(meteo.shape[1]):
            inp = torch.cat([meteo[:, t], attributes], dim=-1)
            h, c = self.cell(inp, (h, c))
            flows.append(self.head(self.dropout(h)))
        q = torch.cat(flows, dim=1)
        return {"discharge": torch.nn.functional.softplus(q), "state": torch.stack([h, c], dim=1)}


def examples():
    torch.manual_seed(0)
    return {"meteo": torch.randn(4, 8, 4), "attributes": torch.randn(4, 3)}

"""Graph attention: softmax over neighbours by scatter_reduce, several heads."""

import torch
import torch.nn.functional as F
from torch import nn


def edge_softmax(score, dst, n):
    index = dst.unsqueeze(-1).expand_as(score)
    top = torch.full((n, score.shape[1]), float("-inf"), dtype=score.dtype, device=score.device)
    top = top.scatter_reduce(0, index, score, reduce="amax", include_self=True)
    e = torch.exp(score - top[dst])
    total = torch.zeros(n, score.shape[1], dtype=score.dtype, device=score.device)
    total = total.scatter_reduce(0, index, e, reduce="sum")
    return e / (total[dst] + 1e-16)


class Sound(nn.Module):
    WHOLE = True

    def __init__(self, din=4, d=6, heads=2):
        super().__init__()
        torch.manual_seed(19)
        self.d, self.heads = d, heads
        self.lin = nn.Linear(din, heads * d, bias=False)
        self.a_src = nn.Parameter(torch.randn(heads, d) * 0.4)
        self.a_dst = nn.Parameter(torch.randn(heads, d) * 0.4)
        self.skip = nn.Linear(din, heads * d)

    def forward(self, x, src, dst):
        n = x.shape[0]
        h = self.lin(x).view(-1, self.heads, self.d)
        alpha = (h * self.a_src).sum(-1)[src] + (h * self.a_dst).sum(-1)[dst]
        alpha = edge_softmax(F.leaky_relu(alpha, 0.2), dst, n)
        msg = alpha.unsqueeze(-1) * h[src]
        out = torch.zeros_like(h).index_add(0, dst, msg)
        return F.elu(out.flatten(1) + self.skip(x))


def examples():
    torch.manual_seed(0)
    return {
        "x": torch.randn(5, 4),
        "src": torch.tensor([0, 1, 2, 3, 4, 0, 2, 4]),
        "dst": torch.tensor([1, 0, 1, 2, 3, 4, 4, 0]),
    }

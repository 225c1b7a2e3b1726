"""GPT-like token model: positions by torch.arange and causal mask by torch.triu made in forward."""

import math

import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(d, 3 * d)
        self.out = nn.Linear(d, d)
        self.drop = nn.Dropout(0.1)

    def forward(self, x, mask):
        B, T, D = x.shape
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        q, k, v = (a.view(B, T, self.heads, D // self.heads).transpose(1, 2) for a in (q, k, v))
        att = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        att = self.drop((att + mask).softmax(-1))
        return self.out((att @ v).transpose(1, 2).reshape(B, T, D))


class Sound(nn.Module):
    def __init__(self, vocab=23, d=16, heads=4, depth=2, max_len=64):
        super().__init__()
        torch.manual_seed(13)
        self.tok = nn.Embedding(vocab, d)
        self.pos = nn.Embedding(max_len, d)
        self.norm1 = nn.ModuleList(nn.LayerNorm(d) for _ in range(depth))
        self.norm2 = nn.ModuleList(nn.LayerNorm(d) for _ in range(depth))
        self.attn = nn.ModuleList(Attention(d, heads) for _ in range(depth))
        self.mlp = nn.ModuleList(
            nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d)) for _ in range(depth)
        )
        self.final = nn.LayerNorm(d)

    def forward(self, tokens):
        B, T = tokens.shape
        assert self.pos.num_embeddings >= T
        h = self.tok(tokens) + self.pos(torch.arange(T, device=tokens.device))[None]
        mask = torch.triu(torch.full((T, T), float("-inf"), device=tokens.device), diagonal=1)
        for n1, a, n2, m in zip(self.norm1, self.attn, self.norm2, self.mlp):
            h = h + a(n1(h), mask)
            h = h + m(n2(h))
        return self.final(h) @ self.tok.weight.t()


def examples():
    torch.manual_seed(0)
    return {"tokens": torch.randint(0, 23, (4, 9))}

"""Equivariant message passing potential (PaiNN-like), smooth cutoff by torch.where, float64."""

import math

import torch
from torch import nn


class Sound(nn.Module):
    WHOLE = True

    def __init__(self, species=4, d=8, n_rbf=6, cutoff=3.0, blocks=2):
        super().__init__()
        torch.manual_seed(20)
        self.cutoff, self.n_rbf, self.d = cutoff, n_rbf, d
        self.embed = nn.Embedding(species, d)
        self.phi = nn.ModuleList(nn.Sequential(nn.Linear(d, d), nn.SiLU(), nn.Linear(d, 3 * d)) for _ in range(blocks))
        self.filters = nn.ModuleList(nn.Linear(n_rbf, 3 * d) for _ in range(blocks))
        self.mix = nn.ModuleList(nn.Linear(d, 2 * d, bias=False) for _ in range(blocks))
        self.update = nn.ModuleList(
            nn.Sequential(nn.Linear(2 * d, d), nn.SiLU(), nn.Linear(d, 2 * d)) for _ in range(blocks)
        )
        self.readout = nn.Sequential(nn.Linear(d, d), nn.SiLU(), nn.Linear(d, 1))
        self.double()

    def radial(self, r):
        k = torch.arange(1, self.n_rbf + 1, dtype=r.dtype, device=r.device)
        basis = torch.sin(k * math.pi * r[:, None] / self.cutoff) / r[:, None]
        fc = 0.5 * (torch.cos(math.pi * r / self.cutoff) + 1.0)
        fc = torch.where(r < self.cutoff, fc, torch.zeros_like(fc))
        return basis, fc

    def forward(self, pos, z):
        n = pos.shape[0]
        i, j = (~torch.eye(n, dtype=torch.bool, device=pos.device)).nonzero(as_tuple=True)
        vec = pos[j] - pos[i]
        r = torch.sqrt((vec * vec).sum(-1) + 1e-12)
        unit = vec / r[:, None]
        basis, fc = self.radial(r)
        s = self.embed(z)
        v = torch.zeros(n, self.d, 3, dtype=s.dtype, device=s.device)
        for phi, filt, mix, upd in zip(self.phi, self.filters, self.mix, self.update):
            w = phi(s)[j] * (filt(basis) * fc[:, None])
            ws, wv, wu = torch.split(w, self.d, dim=-1)
            s = s.index_add(0, i, ws)
            v = v.index_add(0, i, wv[..., None] * v[j] + wu[..., None] * unit[:, None, :])
            a, b = mix(v.transpose(1, 2)).transpose(1, 2).chunk(2, dim=1)
            norm = torch.sqrt((b * b).sum(-1) + 1e-8)
            ds, dv = upd(torch.cat([s, norm], -1)).split([self.d, self.d], dim=-1)
            s = s + ds
            v = v + dv[..., None] * a
        return {"atomic_energy": self.readout(s).squeeze(-1), "dipole": v.mean(1)}


def examples():
    torch.manual_seed(0)
    return {"pos": 1.5 * torch.randn(5, 3, dtype=torch.float64), "z": torch.tensor([0, 1, 1, 2, 3])}

"""Networks on graphs: PyTorch Geometric (https://pyg.org)."""

from __future__ import annotations

import functools
import importlib
from typing import Any

import torch

from exams.laws import make_equivariance
from exams.networks.catalogue import Catalogue, Network
from exams.samples import Tensors

NODES, EDGES, FEATURES = 6, 14, 4
NAMES = ("GCN", "GAT", "GraphSAGE", "GIN")


def _draw(generator: torch.Generator, rows: int) -> Tensors:
    del rows
    pairs = [(i, j) for i in range(NODES) for j in range(NODES) if i != j and (i + j) % 3]
    chosen = torch.randperm(len(pairs), generator=generator)[:EDGES]
    edges = torch.tensor(pairs)[chosen].T.contiguous()
    return torch.randn((NODES, FEATURES), generator=generator, dtype=torch.float64), edges


def _make(name: str) -> Network:
    networks: Any = importlib.import_module("torch_geometric.nn")
    model = getattr(networks, name)(FEATURES, 8, 2, 3).double().eval()
    order = torch.tensor([3, 0, 5, 1, 2, 4])
    place = torch.argsort(order)
    law = make_equivariance("a permutation of nodes", lambda x: (x[0][order], place[x[1]]), lambda y: (y[0][order],))
    return Network(model, _draw, has_batch=False, laws={"permutation": law})


CATALOGUE: Catalogue = {f"torch_geometric {name}": functools.partial(_make, name) for name in NAMES}

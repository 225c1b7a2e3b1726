"""Networks for which rotations of space matter: e3nn (https://e3nn.org), MACE (https://github.com/ACEsuit/mace)."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from exams.laws import draw_rotation, make_equivariance, make_force_law
from exams.networks.catalogue import Catalogue, Network
from exams.pipelines import FILES, LAWS
from exams.samples import Law, Tensors

F = torch.float64
ATOMS, PAIRS = 5, 14


@contextmanager
def _in_double() -> Iterator[None]:
    """Create modules in float64. e3nn of these days reads its constants from a file with slices in it."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(F)
    try:
        with torch.serialization.safe_globals([slice]):
            yield
    finally:
        torch.set_default_dtype(before)


def _rotate(irreps_in: list[Any], irreps_out: list[Any]) -> dict[str, Law]:
    """Return the law that a rotation of all inputs rotates the outputs, each by its irreducible representation."""
    rotation = draw_rotation(0)

    def turn(irreps: list[Any], tensors: Tensors) -> Tensors:
        matrices = [i.D_from_matrix(rotation).to(t.dtype) for i, t in zip(irreps, tensors, strict=True)]
        return tuple(t @ d.T for t, d in zip(tensors, matrices, strict=True))

    law = make_equivariance("a rotation", lambda x: turn(irreps_in, x), lambda y: turn(irreps_out, y))
    return {"equivariance": law}


def _draw_irreps(*irreps: Any) -> Any:
    return lambda generator, rows: tuple(torch.randn((rows, i.dim), generator=generator, dtype=F) for i in irreps)


def _make_linear() -> Network:
    with _in_double():
        o3: Any = importlib.import_module("e3nn.o3")

        model = o3.Linear("4x0e+2x1o", "3x0e+2x1o")
    return Network(model, _draw_irreps(model.irreps_in), laws=_rotate([model.irreps_in], [model.irreps_out]))


def _make_product() -> Network:
    with _in_double():
        o3: Any = importlib.import_module("e3nn.o3")

        model = o3.FullyConnectedTensorProduct("2x0e+1x1o", "1x0e+1x1o", "2x0e+1x1o+1x2e")
    taken = [model.irreps_in1, model.irreps_in2]
    return Network(model, _draw_irreps(*taken), laws=_rotate(taken, [model.irreps_out]))


def _make_gate() -> Network:
    with _in_double():
        gate: Any = importlib.import_module("e3nn.nn").Gate

        model = gate("4x0e", [torch.tanh], "2x0e", [torch.sigmoid], "2x1o")
    return Network(model, _draw_irreps(model.irreps_in), laws=_rotate([model.irreps_in], [model.irreps_out]))


def _make_harmonics() -> Network:
    with _in_double():
        o3: Any = importlib.import_module("e3nn.o3")

        irreps = o3.Irreps("0e+1o+2e+3o")
        model = o3.SphericalHarmonics(irreps, normalize=True)
    vector = o3.Irreps("1o")
    return Network(model, _draw_irreps(vector), laws=_rotate([vector], [irreps]))


class _Potential(nn.Module):
    """MACE as a function of tensors: positions, one-hot kinds, pairs, and the shifts of periodic images."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, positions: torch.Tensor, kinds: torch.Tensor, pairs: torch.Tensor, shifts: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        count = positions.shape[0]
        data = {"positions": positions, "node_attrs": kinds, "edge_index": pairs}
        data |= {"shifts": shifts, "unit_shifts": shifts, "cell": torch.zeros(3, 3, dtype=positions.dtype)}
        data |= {"batch": torch.zeros(count, dtype=torch.long), "ptr": torch.tensor([0, count])}
        data |= {"head": torch.zeros(1, dtype=torch.long)}
        result = self.model(data, training=False, compute_force=True)
        return result["energy"], result["forces"]


def _draw_cluster(generator: torch.Generator, rows: int) -> Tensors:
    del rows
    positions = 1.2 * torch.randn((ATOMS, 3), generator=generator, dtype=F)
    kinds = nn.functional.one_hot(torch.randint(0, 2, (ATOMS,), generator=generator), 2).to(F)
    every = torch.tensor([(i, j) for i in range(ATOMS) for j in range(ATOMS) if i != j])
    pairs = every[torch.randperm(len(every), generator=generator)[:PAIRS]].T.contiguous()
    return positions, kinds, pairs, 0.1 * torch.randn((PAIRS, 3), generator=generator, dtype=F)


def _make_potential() -> Network:
    with _in_double():
        import numpy as np

        o3: Any = importlib.import_module("e3nn.o3")
        modules: Any = importlib.import_module("mace.modules")

        block = modules.interaction_classes["RealAgnosticResidualInteractionBlock"]
        model: Any = modules.ScaleShiftMACE(
            r_max=4.0, num_bessel=4, num_polynomial_cutoff=5, max_ell=2, interaction_cls=block,
            interaction_cls_first=block, num_interactions=2, num_elements=2, hidden_irreps=o3.Irreps("8x0e+8x1o"),
            MLP_irreps=o3.Irreps("8x0e"), gate=nn.functional.silu, atomic_energies=np.array([-1.0, -3.0]),
            avg_num_neighbors=3, atomic_numbers=[1, 8], correlation=2, radial_type="bessel",
            atomic_inter_scale=1.0, atomic_inter_shift=0.0,
        )  # fmt: skip
    rotation, order = draw_rotation(1), torch.tensor([1, 3, 0, 2, 4])
    place = torch.argsort(order)
    laws = {
        "rotation": make_equivariance(
            "a rotation",
            lambda x: (x[0] @ rotation.T, x[1], x[2], x[3] @ rotation.T),
            lambda y: (y[0], y[1] @ rotation.T),
        ),
        "translation": make_equivariance("a translation", lambda x: (x[0] + 3.5, *x[1:]), lambda y: y),
        "permutation": make_equivariance(
            "a permutation of atoms",
            lambda x: (x[0][order], x[1][order], place[x[2]], x[3]),
            lambda y: (y[0], y[1][order]),
        ),
        "forces": make_force_law(0, 0, 1),
    }
    pipelines = (*(name for name in FILES if name != "c"), LAWS)
    return Network(_Potential(model), _draw_cluster, False, pipelines, laws, takes_gradients=True)


CATALOGUE: Catalogue = {
    "e3nn Linear": _make_linear,
    "e3nn FullyConnectedTensorProduct": _make_product,
    "e3nn Gate": _make_gate,
    "e3nn SphericalHarmonics": _make_harmonics,
    "mace ScaleShiftMACE": _make_potential,
}

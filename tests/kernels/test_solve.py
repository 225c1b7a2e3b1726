"""Linear systems in kernels: with pivots, transposed, singular."""

from __future__ import annotations

import pytest
import torch
from kernel_direct import Direct

F = torch.float64


def matrices(n: int, rows: int = 19) -> torch.Tensor:
    """Such as need pivots: zeros and small numbers on the diagonal."""
    made = torch.randn(rows, n, n, dtype=F, generator=torch.Generator().manual_seed(n))
    made[::2].diagonal(dim1=-2, dim2=-1).mul_(1e-12)
    if n > 1:
        made[3, 0, 0] = 0.0
    return made


def solved(a: torch.Tensor, b: torch.Tensor):
    return (torch.linalg.solve_ex(a, b)[0], torch.linalg.solve_ex(a.mT, b)[0], torch.linalg.inv_ex(a)[0])


@pytest.mark.parametrize("n", [1, 2, 3, 7, 12])
def test_solutions(n):
    a, b = matrices(n), torch.randn(19, n, dtype=F, generator=torch.Generator().manual_seed(0))
    for got, wanted in zip(Direct(solved, {"a": a[:1], "b": b[:1]})(a, b), solved(a, b), strict=True):
        scale = wanted.abs().amax()
        assert (got - wanted).abs().amax() <= 1e-11 * scale


def test_without_pivots_they_would_not_be():
    """The control: the rows are not exchanged."""

    def change(files):
        files["direct_lanes.h"] = files["direct_lanes.h"].replace(b"row[l] = larger ? (double)i : row[l];", b"")

    n = 7
    a, b = matrices(n), torch.ones(19, n, dtype=F)
    got = Direct(lambda a, b: (torch.linalg.solve_ex(a, b)[0],), {"a": a[:1], "b": b[:1]}, change=change)(a, b)[0]
    wanted = torch.linalg.solve_ex(a, b)[0]
    assert not torch.allclose(got, wanted, rtol=1e-9)


def test_a_singular_system_is_said_to_be():
    a = torch.stack([torch.eye(3, dtype=F), torch.ones(3, 3, dtype=F), torch.zeros(3, 3, dtype=F)])
    b = torch.ones(3, 3, dtype=F)
    kernel = Direct(lambda a, b: (torch.linalg.solve_ex(a, b)[1].bool(),), {"a": a[:1], "b": b[:1]})
    assert kernel(a, b)[0].tolist() == [False, True, True]


def test_derivative_of_a_solution():
    a, b = matrices(4, 5), torch.randn(5, 4, dtype=F, generator=torch.Generator().manual_seed(1))
    a = a + 4 * torch.eye(4, dtype=F)

    def function(b, a):
        return (torch.linalg.solve_ex(a * b.unsqueeze(-1).cos(), b)[0],)

    got = Direct(function, {"b": b[:1], "a": a[:1]}, jacobian=True)(b, a)[0]
    wanted = torch.stack(
        [
            torch.autograd.functional.jacobian(lambda v, m=m: function(v[None], m[None])[0][0], row)
            for row, m in zip(b, a, strict=True)
        ]
    )
    assert torch.allclose(got, wanted, rtol=1e-10, atol=1e-12)

"""Elimination against LAPACK: the same pivots, the same solutions, the same report of a singular matrix."""

from __future__ import annotations

import pytest
import torch

from exporter.backends.onnx.gaussian_elimination import (
    LARGEST,
    LINEAR_ALGEBRA,
    cholesky_factor,
    lu_factor,
    unpack_factors,
)

SOLVE = LINEAR_ALGEBRA["aten::linalg_solve_ex"]


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


def conditioned(batch: int, n: int) -> torch.Tensor:
    """Away from singular, with rows in an order that needs pivots."""
    return (drawn(batch, n, n) + 3 * torch.eye(n, dtype=torch.float64)).flip(-2)


@pytest.mark.parametrize("n", [1, 2, 5, 9])
def test_factors_are_those_of_lapack(n: int):
    a = conditioned(20, n)
    for got, wanted in zip(lu_factor(a), torch.linalg.lu_factor_ex(a), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("n", [1, 3, 7])
@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("adjoint", [True, False])
def test_solutions_from_factors(n: int, left: bool, adjoint: bool):
    a = conditioned(8, n)
    b = drawn(8, n, 2) if left else drawn(8, 2, n)
    lu, pivots, _ = torch.linalg.lu_factor_ex(a)
    wanted = torch.linalg.lu_solve(lu, pivots, b, left=left, adjoint=adjoint)
    got = LINEAR_ALGEBRA["aten::linalg_lu_solve"](lu, pivots, b, left, adjoint)
    torch.testing.assert_close(got, wanted, rtol=1e-11, atol=1e-12)


def test_vectors_and_matrices_and_one_matrix_for_many_sides():
    a = conditioned(6, 4)
    for item, sides in ((a, drawn(6, 4)), (a, drawn(6, 4, 3)), (a[0], drawn(4)), (a[0], drawn(6, 4, 2))):
        torch.testing.assert_close(SOLVE(item, sides)[0], torch.linalg.solve(item, sides), rtol=1e-11, atol=1e-12)


def test_a_matrix_that_needs_its_pivots():
    a = torch.tensor([[[0.0, 1.0], [1.0, 0.0]]], dtype=torch.float64)
    b = torch.tensor([[2.0, 3.0]], dtype=torch.float64)
    assert SOLVE(a, b)[0].tolist() == [[3.0, 2.0]]


def test_singular_matrices_are_reported_at_their_pivot():
    a = torch.stack([torch.eye(3), torch.zeros(3, 3), torch.tensor([[1.0, 2, 0], [2, 4, 0], [0, 0, 1]])]).double()
    info = SOLVE(a, torch.ones(3, 3, dtype=torch.float64))[1]
    assert torch.equal(info, torch.linalg.solve_ex(a, torch.ones(3, 3, dtype=torch.float64))[1])
    assert info[0] == 0
    assert info[1] != 0


@pytest.mark.parametrize("upper", [True, False])
@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("unit", [True, False])
def test_triangular(upper: bool, left: bool, unit: bool):
    a, b = conditioned(5, 4).flip(-2), drawn(5, 4, 4)
    wanted = torch.linalg.solve_triangular(a, b, upper=upper, left=left, unitriangular=unit)
    got = LINEAR_ALGEBRA["aten::linalg_solve_triangular"](a, b, upper, left, unit)
    torch.testing.assert_close(got, wanted, rtol=1e-11, atol=1e-11)


def test_inverse():
    a = conditioned(5, 6)
    torch.testing.assert_close(LINEAR_ALGEBRA["aten::linalg_inv"](a), torch.linalg.inv(a), rtol=1e-11, atol=1e-12)


def test_too_many_rows_are_refused():
    with pytest.raises(ValueError, match="65 unknowns"):
        lu_factor(torch.eye(LARGEST + 1))


@pytest.mark.parametrize("is_upper", [False, True])
def test_cholesky_factors(is_upper):
    a = torch.randn(3, 5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    spd = a @ a.mT + torch.eye(5)
    # The other triangle is not read.
    matrices = spd + (10.0 * torch.ones(5, 5).triu(1) if not is_upper else 10.0 * torch.ones(5, 5).tril(-1))
    wanted, _ = torch.linalg.cholesky_ex(matrices, upper=is_upper)
    got, info = cholesky_factor(matrices, is_upper)
    torch.testing.assert_close(got, wanted, rtol=1e-13, atol=1e-14)
    assert not info.any()
    spd[1, 2, 2] = -1.0
    assert cholesky_factor(spd, is_upper)[1].tolist() == torch.linalg.cholesky_ex(spd, upper=is_upper).info.tolist()


def test_factors_of_their_own():
    a = torch.randn(3, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    factors, pivots = torch.linalg.lu_factor(a)
    for data, places in ((True, True), (True, False), (False, True)):
        wanted = torch.lu_unpack(factors, pivots, unpack_data=data, unpack_pivots=places)
        for mine, own in zip(unpack_factors(factors, pivots, data, places), wanted, strict=True):
            assert torch.equal(mine, own)
    with pytest.raises(ValueError, match="not square"):
        unpack_factors(factors[:, :3], pivots[:, :3])
    with pytest.raises(ValueError, match="not square"):
        lu_factor(a[:, :3])

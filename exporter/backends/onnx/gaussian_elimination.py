"""Gaussian elimination with row pivoting, in operators that every format has: LU as LAPACK's ``getrf`` gives it.

For small matrices, one for each element of the batch: every row is an operation of its own (Golub and Van Loan, Matrix
Computations, 4th ed., algorithms 3.4.1, 3.1.1 and 3.1.2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

# The most rows: one operation for each makes graphs of hundreds of thousands beyond it.
LARGEST = 64


def lu_factor(a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return ``(LU, pivots, info)`` of ``a`` of shape ``(*batch, n, n)``; ``info`` is k if the k-th pivot is zero."""
    n = _count_rows(a)
    if a.shape[-2] != n:
        raise ValueError("an LU of matrices that are not square is not supported")
    rows = torch.arange(n, device=a.device).unsqueeze(-1)
    info = torch.zeros_like(a[..., 0, 0], dtype=torch.int32)
    pivots = []
    for k in range(n):
        pivot_row = a[..., k:, k].abs().argmax(-1, keepdim=True) + k
        pivots.append(pivot_row)
        a = _swap_rows(a, k, pivot_row, rows)
        info = torch.where((info == 0) & (a[..., k, k] == 0), k + 1, info)
        top = a[..., k : k + 1, :]
        factor = a[..., k + 1 :, k : k + 1] / top[..., k : k + 1]
        trailing = a[..., k + 1 :, k + 1 :] - factor * top[..., k + 1 :]
        a = torch.cat([a[..., : k + 1, :], torch.cat([a[..., k + 1 :, :k], factor, trailing], -1)], -2)
    return a, (torch.cat(pivots, -1) + 1).to(torch.int32), info.to(torch.int32)


def lu_solve(lu: torch.Tensor, pivots: torch.Tensor, b: torch.Tensor, adjoint: bool = False) -> torch.Tensor:
    """Return ``x`` with ``a x = b`` (``adjoint``: ``a^T x = b``) of shape ``(*batch, n, m)``, from ``lu_factor(a)``."""
    n = _count_rows(lu)
    rows = torch.arange(n, device=lu.device).unsqueeze(-1)
    pivot_rows = (pivots - 1).to(torch.int64)
    if adjoint:
        x = solve_upper(lu.mT, solve_lower(lu.mT, b, unit=False), unit=True)
        for k in reversed(range(n)):
            x = _swap_rows(x, k, pivot_rows[..., k : k + 1], rows)
        return x
    for k in range(n):
        b = _swap_rows(b, k, pivot_rows[..., k : k + 1], rows)
    return solve_upper(lu, solve_lower(lu, b, unit=True), unit=False)


def solve_lower(a: torch.Tensor, b: torch.Tensor, *, unit: bool) -> torch.Tensor:
    """Solve with the lower triangle of ``a`` by forward substitution; ``unit``: its diagonal counts as 1."""
    x = b[..., :0, :]
    for k in range(_count_rows(a)):
        remainder = b[..., k : k + 1, :] - a[..., k : k + 1, :k] @ x if k else b[..., :1, :]
        row = remainder if unit else remainder / a[..., k : k + 1, k : k + 1]
        x = torch.cat([x, row], -2) if k else row
    return x


def solve_upper(a: torch.Tensor, b: torch.Tensor, *, unit: bool) -> torch.Tensor:
    """Solve with the upper triangle of ``a`` by back substitution."""
    n = _count_rows(a)
    x = b[..., :0, :]
    for k in reversed(range(n)):
        remainder = b[..., k : k + 1, :] - a[..., k : k + 1, k + 1 :] @ x if k < n - 1 else b[..., n - 1 :, :]
        row = remainder if unit else remainder / a[..., k : k + 1, k : k + 1]
        x = torch.cat([row, x], -2) if k < n - 1 else row
    return x


def _swap_rows(a: torch.Tensor, k: int, position: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Swap rows ``k`` and ``position``, of shape ``(*batch, 1)``."""
    index = position.unsqueeze(-1)
    swapped_row = torch.gather(a, -2, index.expand(*a.shape[:-2], 1, a.shape[-1]))
    a = torch.where(rows == index, a[..., k : k + 1, :], a)
    return torch.where(rows == k, swapped_row, a)


def _count_rows(a: torch.Tensor) -> int:
    n = a.shape[-1]
    if n > LARGEST:
        raise ValueError(f"a linear system of {n} unknowns is too large to be solved row by row: at most {LARGEST}")
    return n


def cholesky_factor(a: torch.Tensor, upper: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ``(L, info)`` of symmetric matrices, of which the lower triangle is read (``upper``: the other one, for
    its transpose); ``info`` is k if the k-th pivot is not positive.

    Golub and Van Loan, Matrix Computations, 4th ed., algorithm 4.2.2, for all rows of a column at once."""
    a = a.mT if upper else a
    info = a.new_zeros(a.shape[:-2], dtype=torch.int32)
    columns = [a[..., :0]]
    for k in range(_count_rows(a)):
        pivot = a[..., :1, :1]
        info = torch.where((info == 0) & ~(pivot[..., 0, 0] > 0), k + 1, info)
        column = a[..., :1] / torch.sqrt(pivot)
        a = a[..., 1:, 1:] - column[..., 1:, :] * column[..., 1:, :].mT
        columns.append(torch.cat([column.new_zeros(()).expand(*column.shape[:-2], k, 1), column], -2))
    factor = torch.cat(columns, -1)
    return factor.mT if upper else factor, info.to(torch.int32)


def unpack_factors(
    lu: torch.Tensor, pivots: torch.Tensor, unpack_data: bool = True, unpack_pivots: bool = True
) -> tuple[torch.Tensor, ...]:
    """Return ``(P, L, U)`` of square matrices from what ``lu_factor`` gives."""
    n = _count_rows(lu)
    if lu.shape[-2] != n:
        raise ValueError("an LU of matrices that are not square is not supported")
    none, identity = lu.new_zeros(0), torch.eye(n, dtype=lu.dtype, device=lu.device).expand(lu.shape)
    permuted, rows = identity, torch.arange(n, device=lu.device).unsqueeze(-1)
    for k in range(n) if unpack_pivots else ():
        permuted = _swap_rows(permuted, k, (pivots[..., k : k + 1] - 1).to(torch.int64), rows)
    lower, upper = (lu.tril(-1) + identity, lu.triu()) if unpack_data else (none, none)
    return (permuted.mT if unpack_pivots else none), lower, upper


def _is_vector_batch(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return whether ``b`` is a batch of vectors, as torch.linalg.solve defines it."""
    return b.ndim == 1 or (a.ndim - 1 == b.ndim and b.shape == a.shape[:-1])


def _solve(a: torch.Tensor, b: torch.Tensor, left: bool = True, check_errors: bool = False) -> tuple[torch.Tensor, ...]:
    lu, pivots, info = lu_factor(a)
    vector = _is_vector_batch(a, b)
    matrix = b.unsqueeze(-1) if vector else b
    matrix = matrix.expand(*torch.broadcast_shapes(a.shape[:-2], matrix.shape[:-2]), *matrix.shape[-2:])
    x = _solve_from_lu(lu, pivots, matrix, left)
    return (x.squeeze(-1) if vector else x), lu, pivots, info


def solve_ex(
    a: torch.Tensor, b: torch.Tensor, left: bool = True, check_errors: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Solve as ``torch.linalg.solve_ex`` does."""
    x, _, _, info = _solve(a, b, left)
    return x, info


def _solve_from_lu(
    lu: torch.Tensor, pivots: torch.Tensor, b: torch.Tensor, left: bool = True, adjoint: bool = False
) -> torch.Tensor:
    # x a = b is a^T x^T = b^T
    return lu_solve(lu, pivots, b, adjoint) if left else lu_solve(lu, pivots, b.mT, not adjoint).mT


def _invert(a: torch.Tensor, check_errors: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    lu, pivots, info = lu_factor(a)
    identity = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device).expand(a.shape)
    return lu_solve(lu, pivots, identity), info


def _raise_to_power(a: torch.Tensor, n: int) -> torch.Tensor:
    """Return a power of square matrices by squares, as torch does; torch's own decomposition loses the batch at 0."""
    if n <= 0:
        identity = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device).expand(a.shape).clone()
        return identity if n == 0 else _raise_to_power(_invert(a)[0], -n)
    half = _raise_to_power(a, n // 2) if n > 1 else a
    square = half @ half if n > 1 else a
    return square @ a if n % 2 and n > 1 else square


def _solve_triangular(
    a: torch.Tensor, b: torch.Tensor, is_upper: bool, left: bool = True, unitriangular: bool = False
) -> torch.Tensor:
    if not left:
        return _solve_triangular(a.mT, b.mT, not is_upper, unitriangular=unitriangular).mT
    return _SIDES[is_upper](a, b, unit=unitriangular)


_SIDES: Mapping[bool, Callable[..., torch.Tensor]] = {True: solve_upper, False: solve_lower}


def _factor(a: torch.Tensor, pivot: bool = True, check_errors: bool = False) -> tuple[torch.Tensor, ...]:
    if not pivot:
        raise ValueError("an LU without pivoting is not supported")
    return lu_factor(a)


def _factor_and_unpack(a: torch.Tensor, pivot: bool = True) -> tuple[torch.Tensor, ...]:
    lu, pivots, _ = _factor(a, pivot)
    return unpack_factors(lu, pivots)


# By TorchScript operator without overload, with the arguments of its schema in their order.
LINEAR_ALGEBRA: Mapping[str, Callable[..., Any]] = {
    "aten::cholesky": lambda a, upper=False: cholesky_factor(a, upper)[0],
    "aten::linalg_cholesky": lambda a, upper=False: cholesky_factor(a, upper)[0],
    "aten::linalg_cholesky_ex": lambda a, upper=False, check_errors=False: cholesky_factor(a, upper),
    "aten::lu_unpack": unpack_factors,
    "aten::linalg_lu": _factor_and_unpack,
    "aten::_linalg_solve_ex": _solve,
    "aten::linalg_solve_ex": solve_ex,
    "aten::linalg_solve": lambda a, b, left=True: solve_ex(a, b, left)[0],
    "aten::linalg_lu_factor_ex": _factor,
    "aten::linalg_lu_factor": lambda a, pivot=True: _factor(a, pivot)[:2],
    "aten::linalg_lu_solve": _solve_from_lu,
    "aten::linalg_inv_ex": _invert,
    "aten::linalg_inv": lambda a: _invert(a)[0],
    "aten::inverse": lambda a: _invert(a)[0],
    "aten::linalg_solve_triangular": _solve_triangular,
    "aten::linalg_matrix_power": _raise_to_power,
    "aten::matrix_power": _raise_to_power,
}

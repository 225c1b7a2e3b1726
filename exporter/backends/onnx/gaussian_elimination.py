"""Gaussian elimination with row pivoting, in operators that every container has: LU as LAPACK's ``getrf`` gives it.

For small matrices, one for each element of the batch: every row is an operation of its own (Golub and Van Loan, Matrix
Computations, 4th ed., algorithms 3.4.1, 3.1.1 and 3.1.2).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

# Of rows: an operation for each would make graphs of hundreds of thousands.
LARGEST = 64


def lu_factor(a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """``(LU, pivots, info)`` of ``a`` of shape ``(*batch, n, n)``; ``info`` is k where the k-th pivot is zero."""
    n = _rows(a)
    rows = torch.arange(n, device=a.device).unsqueeze(-1)
    info = torch.zeros_like(a[..., 0, 0], dtype=torch.int32)
    pivots = []
    for k in range(n):
        at = a[..., k:, k].abs().argmax(-1, keepdim=True) + k
        pivots.append(at)
        a = _exchanged(a, k, at, rows)
        info = torch.where((info == 0) & (a[..., k, k] == 0), k + 1, info)
        top = a[..., k : k + 1, :]
        factor = a[..., k + 1 :, k : k + 1] / top[..., k : k + 1]
        rest = a[..., k + 1 :, k + 1 :] - factor * top[..., k + 1 :]
        a = torch.cat([a[..., : k + 1, :], torch.cat([a[..., k + 1 :, :k], factor, rest], -1)], -2)
    return a, (torch.cat(pivots, -1) + 1).to(torch.int32), info.to(torch.int32)


def lu_solve(lu: torch.Tensor, pivots: torch.Tensor, b: torch.Tensor, adjoint: bool = False) -> torch.Tensor:
    """``x`` with ``a x = b`` (``a^T x = b`` for ``adjoint``) of shape ``(*batch, n, m)``, from ``lu_factor(a)``."""
    n = _rows(lu)
    rows = torch.arange(n, device=lu.device).unsqueeze(-1)
    at = (pivots - 1).to(torch.int64)
    if adjoint:
        x = upper(lu.mT, lower(lu.mT, b, unit=False), unit=True)
        for k in reversed(range(n)):
            x = _exchanged(x, k, at[..., k : k + 1], rows)
        return x
    for k in range(n):
        b = _exchanged(b, k, at[..., k : k + 1], rows)
    return upper(lu, lower(lu, b, unit=True), unit=False)


def lower(a: torch.Tensor, b: torch.Tensor, *, unit: bool) -> torch.Tensor:
    """Forward substitution with the lower triangle of ``a``, whose diagonal counts as 1 for ``unit``."""
    x = b[..., :0, :]
    for k in range(_rows(a)):
        left = b[..., k : k + 1, :] - a[..., k : k + 1, :k] @ x if k else b[..., :1, :]
        row = left if unit else left / a[..., k : k + 1, k : k + 1]
        x = torch.cat([x, row], -2) if k else row
    return x


def upper(a: torch.Tensor, b: torch.Tensor, *, unit: bool) -> torch.Tensor:
    """Back substitution with the upper triangle of ``a``."""
    n = _rows(a)
    x = b[..., :0, :]
    for k in reversed(range(n)):
        left = b[..., k : k + 1, :] - a[..., k : k + 1, k + 1 :] @ x if k < n - 1 else b[..., n - 1 :, :]
        row = left if unit else left / a[..., k : k + 1, k : k + 1]
        x = torch.cat([row, x], -2) if k < n - 1 else row
    return x


def _exchanged(a: torch.Tensor, k: int, at: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Rows ``k`` and ``at``, of shape ``(*batch, 1)``, in each other's place."""
    where = at.unsqueeze(-1)
    other = torch.gather(a, -2, where.expand(*a.shape[:-2], 1, a.shape[-1]))
    a = torch.where(rows == where, a[..., k : k + 1, :], a)
    return torch.where(rows == k, other, a)


def _rows(a: torch.Tensor) -> int:
    n = a.shape[-1]
    if n > LARGEST:
        raise ValueError(f"a linear system of {n} unknowns is solved row by row; the most is {LARGEST}")
    return n


def _columns(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether ``b`` is a batch of vectors, as torch.linalg.solve has it."""
    return b.ndim == 1 or (a.ndim - 1 == b.ndim and b.shape == a.shape[:-1])


def _solved(
    a: torch.Tensor, b: torch.Tensor, left: bool = True, check_errors: bool = False
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    lu, pivots, info = lu_factor(a)
    vector = _columns(a, b)
    whole = b.unsqueeze(-1) if vector else b
    whole = whole.expand(*torch.broadcast_shapes(a.shape[:-2], whole.shape[:-2]), *whole.shape[-2:])
    x = _from_lu(lu, pivots, whole, left)
    return (x.squeeze(-1) if vector else x), lu, pivots, info


def solve_ex(
    a: torch.Tensor, b: torch.Tensor, left: bool = True, check_errors: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """As ``torch.linalg.solve_ex``."""
    x, _, _, info = _solved(a, b, left)
    return x, info


def _from_lu(
    lu: torch.Tensor, pivots: torch.Tensor, b: torch.Tensor, left: bool = True, adjoint: bool = False
) -> torch.Tensor:
    # x a = b is a^T x^T = b^T
    return lu_solve(lu, pivots, b, adjoint) if left else lu_solve(lu, pivots, b.mT, not adjoint).mT


def _inverse(a: torch.Tensor, check_errors: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    lu, pivots, info = lu_factor(a)
    one = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device).expand(a.shape)
    return lu_solve(lu, pivots, one), info


def _triangular(
    a: torch.Tensor, b: torch.Tensor, upper: bool, left: bool = True, unitriangular: bool = False
) -> torch.Tensor:
    if not left:
        return _triangular(a.mT, b.mT, not upper, unitriangular=unitriangular).mT
    return _SIDES[upper](a, b, unit=unitriangular)


_SIDES: Mapping[bool, Callable[..., torch.Tensor]] = {True: upper, False: lower}


def _factors(
    a: torch.Tensor, pivot: bool = True, check_errors: bool = False
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    if not pivot:
        raise ValueError("an LU without pivoting")
    return lu_factor(a)


# By TorchScript operator without overload, with the arguments of its schema in their order.
LINEAR_ALGEBRA: Mapping[str, Callable[..., Any]] = {
    "aten::_linalg_solve_ex": _solved,
    "aten::linalg_solve_ex": solve_ex,
    "aten::linalg_solve": lambda a, b, left=True: solve_ex(a, b, left)[0],
    "aten::linalg_lu_factor_ex": _factors,
    "aten::linalg_lu_factor": lambda a, pivot=True: _factors(a, pivot)[:2],
    "aten::linalg_lu_solve": _from_lu,
    "aten::linalg_inv_ex": _inverse,
    "aten::linalg_inv": lambda a: _inverse(a)[0],
    "aten::inverse": lambda a: _inverse(a)[0],
    "aten::linalg_solve_triangular": _triangular,
}

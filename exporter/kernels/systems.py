"""Rows of operators that solve linear systems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from exporter.kernels.ssa import F64, LU, SOLVED
from exporter.kernels.symbols import Lowering, Symbol, kind_of


def refuse_single(lowering: Lowering, kind: str) -> None:
    """Elimination is written in double precision. Raises ``UnsupportedError`` for another."""
    if kind != F64:
        raise lowering.refused(f"a linear system in {kind}", F64)


def _solve(
    lowering: Lowering, matrix: torch.Tensor, rights: torch.Tensor, kind: str, *, transposed: bool
) -> torch.Tensor:
    """``matrix`` of shape ``(..., n, n)``, ``rights`` of ``(..., n, m)``, whatever broadcasts."""
    terms = lowering.terms
    refuse_single(lowering, kind)
    n, m = rights.shape[-2:]
    lead = torch.broadcast_shapes(matrix.shape[:-2], rights.shape[:-2])
    whole = matrix.expand(*lead, n, n).reshape(-1, n, n)
    sides = rights.expand(*lead, n, m).reshape(-1, n, m)
    found = torch.empty_like(sides)
    for at in range(len(whole)):
        factors = terms.make(LU, whole[at].reshape(-1).tolist(), kind, (n,))
        for j in range(m):
            given = (factors, *sides[at, :, j].tolist())
            found[at, :, j] = torch.tensor(terms.picks(SOLVED, given, (n, transposed), [kind] * n), dtype=torch.int64)
    return found.reshape(*lead, n, m)


def solved(lowering: Lowering, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Symbol, ...]:
    """``_linalg_solve_ex``: the solution, the factors of the matrix (which are read by ``linalg_lu_solve`` alone),
    pivots, and whether it is singular."""
    matrix, right = lowering.symbol(args[0]), lowering.symbol(args[1])
    if not kwargs.get("left", True):
        raise lowering.refused("a linear system with the matrix at the right", "linalg.solve with left=True")
    dtype = matrix.dtype
    kind = kind_of(dtype, lowering.terms.origin)
    vector = right.ids.ndim == 1 or (right.ids.ndim == matrix.ids.ndim - 1 and right.shape == matrix.shape[:-1])
    sides = right.ids.unsqueeze(-1) if vector else right.ids
    found = _solve(lowering, matrix.ids, sides, kind, transposed=False)
    n = matrix.ids.shape[-1]
    lead = matrix.ids.shape[:-2]
    info = [
        lowering.terms.make("singular", (lowering.terms.make(LU, one.reshape(-1).tolist(), kind, (n,)),), "int32")
        for one in matrix.ids.reshape(-1, n, n)
    ]
    factors = Symbol(matrix.ids.clone(), dtype)
    factors.factorised = matrix.ids
    pivots = lowering.symbol(torch.arange(1, n + 1, dtype=torch.int32).expand(*lead, n))
    said = Symbol(torch.tensor(info, dtype=torch.int64).reshape(lead), torch.int32)
    return Symbol(found[..., 0] if vector else found, dtype), factors, pivots, said


def factored(lowering: Lowering, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Symbol, ...]:
    matrix = lowering.symbol(args[0])
    n = matrix.ids.shape[-1]
    lead = matrix.ids.shape[:-2]
    kind = kind_of(matrix.dtype, lowering.terms.origin)
    terms = lowering.terms
    refuse_single(lowering, kind)
    info = [
        terms.make("singular", (terms.make(LU, one.reshape(-1).tolist(), kind, (n,)),), "int32")
        for one in matrix.ids.reshape(-1, n, n)
    ]
    factors = Symbol(matrix.ids.clone(), matrix.dtype)
    factors.factorised = matrix.ids
    pivots = lowering.symbol(torch.arange(1, n + 1, dtype=torch.int32).expand(*lead, n))
    return factors, pivots, Symbol(torch.tensor(info, dtype=torch.int64).reshape(lead), torch.int32)


def solved_by_factors(lowering: Lowering, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Symbol:
    factors, _, right = args
    if not isinstance(factors, Symbol) or factors.factorised is None or not kwargs.get("left", True):
        raise lowering.refused("linalg_lu_solve of factors that are not the graph's own")
    kind = kind_of(factors.dtype, lowering.terms.origin)
    transposed = bool(kwargs.get("adjoint", False))
    return Symbol(
        _solve(lowering, factors.factorised, lowering.symbol(right).ids, kind, transposed=transposed), factors.dtype
    )


def inverted(lowering: Lowering, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    matrix = lowering.symbol(args[0])
    n = matrix.ids.shape[-1]
    unit = lowering.symbol(torch.eye(n, dtype=matrix.dtype))
    kind = kind_of(matrix.dtype, lowering.terms.origin)
    found = Symbol(_solve(lowering, matrix.ids, unit.ids, kind, transposed=False), matrix.dtype)
    info = lowering.symbol(torch.zeros(matrix.ids.shape[:-2], dtype=torch.int32))
    return (found, info) if func.overloadpacket.__name__ == "linalg_inv_ex" else found

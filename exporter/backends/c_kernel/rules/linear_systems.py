"""Rows of operators that solve linear systems."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from exporter.backends.c_kernel.expression_graph import F64, LU, SOLVED
from exporter.backends.c_kernel.registry import lowers
from exporter.backends.c_kernel.symbolic_tensor import Lowering, Symbol, kind_of


def refuse_single(lowering: Lowering, kind: str) -> None:
    """Elimination is written in double precision. Raises ``UnsupportedError`` for another."""
    if kind != F64:
        raise lowering.refused(f"a linear system in {kind}", F64)


# What raises an error of a singular matrix, without it: by operator of TorchScript, with the arguments of its schema.
NO_ERRORS: Mapping[str, Callable[..., Any]] = {
    "aten::linalg_solve": lambda a, b, left=True: torch.linalg.solve_ex(a, b, left=left)[0],
    "aten::linalg_inv": lambda a: torch.linalg.inv_ex(a)[0],
    "aten::inverse": lambda a: torch.linalg.inv_ex(a)[0],
    "aten::linalg_lu_factor": lambda a, pivot=True: torch.linalg.lu_factor_ex(a, pivot=pivot)[:2],
}


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


def _singular(lowering: Lowering, matrix: torch.Tensor, kind: str) -> Symbol:
    """The first pivot that is zero, counted from 1, or 0, of each ``matrix`` of shape ``(..., n, n)``."""
    terms, n = lowering.terms, matrix.shape[-1]
    info = [
        terms.make("singular", (terms.make(LU, one.reshape(-1).tolist(), kind, (n,)),), "int32")
        for one in matrix.reshape(-1, n, n)
    ]
    return Symbol(torch.tensor(info, dtype=torch.int64).reshape(matrix.shape[:-2]), torch.int32)


@lowers("_linalg_solve_ex")
def solved(lowering: Lowering, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Symbol, ...]:
    """``_linalg_solve_ex``: the solution, the factors of the matrix and its pivots (which are read by
    ``linalg_lu_solve`` alone), and whether it is singular."""
    matrix, right = lowering.symbol(args[0]), lowering.symbol(args[1])
    kind = kind_of(matrix.dtype, lowering.terms.origin)
    if not kwargs.get("left", True):
        turned = _solve(lowering, matrix.ids, right.ids.mT, kind, transposed=True)
        return Symbol(turned.mT, matrix.dtype), *factored(lowering, func, args, kwargs)
    vector = right.ids.ndim == 1 or (right.ids.ndim == matrix.ids.ndim - 1 and right.shape == matrix.shape[:-1])
    sides = right.ids.unsqueeze(-1) if vector else right.ids
    found = _solve(lowering, matrix.ids, sides, kind, transposed=False)
    return Symbol(found[..., 0] if vector else found, matrix.dtype), *factored(lowering, func, args, kwargs)


@lowers("linalg_lu_factor_ex")
def factored(lowering: Lowering, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Symbol, ...]:
    matrix = lowering.symbol(args[0])
    kind = kind_of(matrix.dtype, lowering.terms.origin)
    refuse_single(lowering, kind)
    factors = Symbol(matrix.ids.clone(), matrix.dtype)
    pivots = Symbol(torch.zeros(matrix.ids.shape[:-1], dtype=torch.int64), torch.int32)
    # Neither has numbers in a kernel.
    factors.factorised = pivots.factorised = matrix.ids
    return factors, pivots, _singular(lowering, matrix.ids, kind)


@lowers("linalg_lu_solve")
def solved_by_factors(lowering: Lowering, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Symbol:
    factors, pivots, right = args
    own = [s.factorised if isinstance(s, Symbol) else None for s in (factors, pivots)]
    if own[0] is None or own[1] is None or not torch.equal(own[0], own[1]):
        raise lowering.refused("linalg_lu_solve of factors and pivots that are not those of one matrix of the graph")
    if isinstance(right, Symbol) and right.factorised is not None:
        raise lowering.refused("linalg_lu_solve with the factors of a matrix at the right")
    kind = kind_of(factors.dtype, lowering.terms.origin)
    adjoint, sides = bool(kwargs.get("adjoint", False)), lowering.symbol(right).ids
    if kwargs.get("left", True):
        return Symbol(_solve(lowering, own[0], sides, kind, transposed=adjoint), factors.dtype)
    return Symbol(_solve(lowering, own[0], sides.mT, kind, transposed=not adjoint).mT, factors.dtype)


@lowers("linalg_inv_ex")
def inverted(lowering: Lowering, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    matrix = lowering.symbol(args[0])
    n = matrix.ids.shape[-1]
    unit = lowering.symbol(torch.eye(n, dtype=matrix.dtype))
    kind = kind_of(matrix.dtype, lowering.terms.origin)
    found = Symbol(_solve(lowering, matrix.ids, unit.ids, kind, transposed=False), matrix.dtype)
    said = func.overloadpacket.__name__ == "linalg_inv_ex"
    return (found, _singular(lowering, matrix.ids, kind)) if said else found

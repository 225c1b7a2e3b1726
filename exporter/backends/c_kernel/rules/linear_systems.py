"""Lowering rules of linear systems."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from exporter.backends.c_kernel.expression_graph import F64, LU, SOLVED
from exporter.backends.c_kernel.registry import lowers
from exporter.backends.c_kernel.symbolic_tensor import SymbolicDispatch, SymbolicTensor, get_dtype_name


def check_double(dispatch: SymbolicDispatch, dtype_name: str) -> None:
    """Check that a system is in double precision, which elimination is written in; else raise ``UnsupportedError``."""
    if dtype_name != F64:
        raise dispatch.unsupported_error(f"a linear system in {dtype_name}", F64)


# Variants without an error for a singular matrix: by operator of TorchScript, with the arguments of its schema.
NO_ERRORS: Mapping[str, Callable[..., Any]] = {
    "aten::linalg_solve": lambda a, b, left=True: torch.linalg.solve_ex(a, b, left=left)[0],
    "aten::linalg_inv": lambda a: torch.linalg.inv_ex(a)[0],
    "aten::inverse": lambda a: torch.linalg.inv_ex(a)[0],
    "aten::linalg_lu_factor": lambda a, pivot=True: torch.linalg.lu_factor_ex(a, pivot=pivot)[:2],
}


def _solve(
    dispatch: SymbolicDispatch, matrix: torch.Tensor, rights: torch.Tensor, dtype_name: str, *, transposed: bool
) -> torch.Tensor:
    """Solve for ``matrix`` of shape ``(..., n, n)`` and ``rights`` of ``(..., n, m)``, which broadcast."""
    graph = dispatch.graph
    check_double(dispatch, dtype_name)
    n, m = rights.shape[-2:]
    batch_shape = torch.broadcast_shapes(matrix.shape[:-2], rights.shape[:-2])
    matrices = matrix.expand(*batch_shape, n, n).reshape(-1, n, n)
    sides = rights.expand(*batch_shape, n, m).reshape(-1, n, m)
    solution = torch.empty_like(sides)
    for index in range(len(matrices)):
        factors = graph.add(LU, matrices[index].reshape(-1).tolist(), dtype_name, (n,))
        for j in range(m):
            operands = (factors, *sides[index, :, j].tolist())
            solution[index, :, j] = torch.tensor(
                graph.unpack(SOLVED, operands, (n, transposed), [dtype_name] * n), dtype=torch.int64
            )
    return solution.reshape(*batch_shape, n, m)


def _find_zero_pivots(dispatch: SymbolicDispatch, matrix: torch.Tensor, dtype_name: str) -> SymbolicTensor:
    """Return the first pivot that is zero, counted from 1, or 0, of each ``matrix`` of shape ``(..., n, n)``."""
    graph, n = dispatch.graph, matrix.shape[-1]
    info = [
        graph.add("singular", (graph.add(LU, single.reshape(-1).tolist(), dtype_name, (n,)),), "int32")
        for single in matrix.reshape(-1, n, n)
    ]
    return SymbolicTensor(torch.tensor(info, dtype=torch.int64).reshape(matrix.shape[:-2]), torch.int32)


@lowers("_linalg_solve_ex")
def lower_solve(
    dispatch: SymbolicDispatch, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[SymbolicTensor, ...]:
    """Lower ``_linalg_solve_ex``: the solution, the factors of the matrix and its pivots (which ``linalg_lu_solve``
    alone reads), and whether it is singular."""
    matrix, right = dispatch.to_symbol(args[0]), dispatch.to_symbol(args[1])
    dtype_name = get_dtype_name(matrix.dtype, dispatch.graph.origin)
    if not kwargs.get("left", True):
        transposed_solution = _solve(dispatch, matrix.ids, right.ids.mT, dtype_name, transposed=True)
        return SymbolicTensor(transposed_solution.mT, matrix.dtype), *lower_lu_factor(dispatch, func, args, kwargs)
    vector = right.ids.ndim == 1 or (right.ids.ndim == matrix.ids.ndim - 1 and right.shape == matrix.shape[:-1])
    sides = right.ids.unsqueeze(-1) if vector else right.ids
    solution = _solve(dispatch, matrix.ids, sides, dtype_name, transposed=False)
    return SymbolicTensor(solution[..., 0] if vector else solution, matrix.dtype), *lower_lu_factor(
        dispatch, func, args, kwargs
    )


@lowers("linalg_lu_factor_ex")
def lower_lu_factor(
    dispatch: SymbolicDispatch, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[SymbolicTensor, ...]:
    """Lower ``linalg_lu_factor_ex``: the factors, the pivots, and whether the matrix is singular."""
    matrix = dispatch.to_symbol(args[0])
    dtype_name = get_dtype_name(matrix.dtype, dispatch.graph.origin)
    check_double(dispatch, dtype_name)
    factors = SymbolicTensor(matrix.ids.clone(), matrix.dtype)
    pivots = SymbolicTensor(torch.zeros(matrix.ids.shape[:-1], dtype=torch.int64), torch.int32)
    # A kernel has no nodes of either.
    factors.factored_matrix = pivots.factored_matrix = matrix.ids
    return factors, pivots, _find_zero_pivots(dispatch, matrix.ids, dtype_name)


@lowers("linalg_lu_solve")
def lower_lu_solve(
    dispatch: SymbolicDispatch, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> SymbolicTensor:
    """Lower ``linalg_lu_solve`` of factors and pivots that the graph made of one matrix."""
    factors, pivots, right = args
    matrices = [s.factored_matrix if isinstance(s, SymbolicTensor) else None for s in (factors, pivots)]
    if matrices[0] is None or matrices[1] is None or not torch.equal(matrices[0], matrices[1]):
        raise dispatch.unsupported_error(
            "linalg_lu_solve of factors and pivots that do not belong to one matrix of the graph"
        )
    if isinstance(right, SymbolicTensor) and right.factored_matrix is not None:
        raise dispatch.unsupported_error("linalg_lu_solve with the factors of a matrix as right side")
    dtype_name = get_dtype_name(factors.dtype, dispatch.graph.origin)
    adjoint, sides = bool(kwargs.get("adjoint", False)), dispatch.to_symbol(right).ids
    if kwargs.get("left", True):
        return SymbolicTensor(_solve(dispatch, matrices[0], sides, dtype_name, transposed=adjoint), factors.dtype)
    return SymbolicTensor(_solve(dispatch, matrices[0], sides.mT, dtype_name, transposed=not adjoint).mT, factors.dtype)


@lowers("linalg_inv_ex")
def lower_inverse(dispatch: SymbolicDispatch, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Lower the inverse of a matrix."""
    matrix = dispatch.to_symbol(args[0])
    n = matrix.ids.shape[-1]
    unit = dispatch.to_symbol(torch.eye(n, dtype=matrix.dtype))
    dtype_name = get_dtype_name(matrix.dtype, dispatch.graph.origin)
    inverse = SymbolicTensor(_solve(dispatch, matrix.ids, unit.ids, dtype_name, transposed=False), matrix.dtype)
    has_info = func.overloadpacket.__name__ == "linalg_inv_ex"
    return (inverse, _find_zero_pivots(dispatch, matrix.ids, dtype_name)) if has_info else inverse

"""Lowering rules of linear systems."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from exporter.backends.c_kernel.expression_graph import F64, LU, SOLVED, Expr
from exporter.backends.c_kernel.symbolic_tensor import OperatorCall, SymbolicTensor, get_dtype_name, lowers, make_symbol

# Variants without an error for a singular matrix: by operator of TorchScript, with the arguments of its schema.
NO_ERRORS: Mapping[str, Callable[..., Any]] = {
    "aten::linalg_solve": lambda a, b, left=True: torch.linalg.solve_ex(a, b, left=left)[0],
    "aten::linalg_inv": lambda a: torch.linalg.inv_ex(a)[0],
    "aten::inverse": lambda a: torch.linalg.inv_ex(a)[0],
    "aten::linalg_lu_factor": lambda a, pivot=True: torch.linalg.lu_factor_ex(a, pivot=pivot)[:2],
}

# A sum of products loses digits to those that cancel, more of them with each row: elimination would not.
LARGEST_DETERMINANT = 3


def _check_double(call: OperatorCall, dtype: torch.dtype) -> None:
    """Check that a system is in double precision, which elimination is written in; else raise ``UnsupportedError``."""
    name = get_dtype_name(dtype, call.graph.origin)
    if name != F64:
        raise call.dispatch.unsupported_error(f"a linear system in {name}", F64)


def _solve(call: OperatorCall, matrix: torch.Tensor, rights: torch.Tensor, *, transposed: bool) -> torch.Tensor:
    """Solve for ``matrix`` of shape ``(..., n, n)`` and ``rights`` of ``(..., n, m)``, which broadcast."""
    n, m = rights.shape[-2:]
    batch_shape = torch.broadcast_shapes(matrix.shape[:-2], rights.shape[:-2])
    matrices = matrix.expand(*batch_shape, n, n).reshape(-1, n, n)
    sides = rights.expand(*batch_shape, n, m).reshape(-1, n, m)
    solution = torch.empty_like(sides)
    for index in range(len(matrices)):
        factors = call.graph.add(LU, matrices[index].reshape(-1).tolist(), F64, (n,))
        for j in range(m):
            operands = (factors, *sides[index, :, j].tolist())
            nodes = call.graph.unpack(SOLVED, operands, (n, transposed), [F64] * n)
            solution[index, :, j] = torch.tensor(nodes, dtype=torch.int64)
    return solution.reshape(*batch_shape, n, m)


def _find_zero_pivots(call: OperatorCall, matrix: torch.Tensor) -> SymbolicTensor:
    """Return the first pivot that is zero, counted from 1, or 0, of each ``matrix`` of shape ``(..., n, n)``."""
    n = matrix.shape[-1]
    factors = [call.graph.add(LU, single.reshape(-1).tolist(), F64, (n,)) for single in matrix.reshape(-1, n, n)]
    nodes = [call.graph.add("singular", (node,), "int32") for node in factors]
    return make_symbol(nodes, matrix.shape[:-2], torch.int32)


@lowers("_linalg_solve_ex")
def lower_solve(call: OperatorCall) -> tuple[SymbolicTensor, ...]:
    """Lower ``_linalg_solve_ex``: the solution, the factors of the matrix and its pivots (which ``linalg_lu_solve``
    alone reads), and whether it is singular."""
    matrix, right = (call.dispatch.to_symbol(v) for v in call.args[:2])
    _check_double(call, matrix.dtype)
    if not call.kwargs.get("left", True):
        solution = _solve(call, matrix.ids, right.ids.mT, transposed=True).mT
        return SymbolicTensor(solution, matrix.dtype), *lower_lu_factor(call)
    is_vector = right.ids.ndim == 1 or (right.ids.ndim == matrix.ids.ndim - 1 and right.shape == matrix.shape[:-1])
    solution = _solve(call, matrix.ids, right.ids.unsqueeze(-1) if is_vector else right.ids, transposed=False)
    return SymbolicTensor(solution[..., 0] if is_vector else solution, matrix.dtype), *lower_lu_factor(call)


@lowers("linalg_lu_factor_ex")
def lower_lu_factor(call: OperatorCall) -> tuple[SymbolicTensor, ...]:
    """Lower ``linalg_lu_factor_ex``: the factors, the pivots, and whether the matrix is singular."""
    matrix = call.dispatch.to_symbol(call.args[0])
    _check_double(call, matrix.dtype)
    return *_make_factors(matrix), _find_zero_pivots(call, matrix.ids)


def _make_factors(matrix: SymbolicTensor) -> tuple[SymbolicTensor, SymbolicTensor]:
    """Return the factors of a matrix and its pivots, of which a kernel has no nodes."""
    factors = SymbolicTensor(matrix.ids.clone(), matrix.dtype)
    pivots = SymbolicTensor(torch.zeros(matrix.ids.shape[:-1], dtype=torch.int64), torch.int32)
    factors.factored_matrix = pivots.factored_matrix = matrix.ids
    return factors, pivots


@lowers("_linalg_det")
def lower_determinant(call: OperatorCall) -> tuple[SymbolicTensor, ...]:
    """Lower ``_linalg_det``: the determinant, and the factors and pivots that torch has: those of the transpose of a
    contiguous matrix."""
    matrix = call.dispatch.to_symbol(call.args[0])
    n = matrix.ids.shape[-1]
    if n > LARGEST_DETERMINANT:
        expected = f"matrices of at most {LARGEST_DETERMINANT} rows"
        raise call.dispatch.unsupported_error(f"aten::linalg_det of {n} by {n} numbers", expected)
    count = math.prod(matrix.ids.shape[:-2])
    nodes = [_expand_determinant(call, rows) for rows in matrix.ids.reshape(count, n, n).tolist()]
    result = make_symbol([node.index for node in nodes], matrix.ids.shape[:-2], matrix.dtype)
    factored = SymbolicTensor(matrix.ids.mT, matrix.dtype) if matrix.ids.is_contiguous() else matrix
    return result, *_make_factors(factored)


@lowers("_linalg_slogdet")
def lower_log_determinant(call: OperatorCall) -> tuple[torch.Tensor, ...]:
    """Lower ``_linalg_slogdet``: the sign of the determinant, the logarithm of its size, the factors and pivots."""
    result, *factors = lower_determinant(call)
    with call.dispatch:
        return torch.sign(result), torch.log(torch.abs(result)), *factors


@lowers("cholesky_solve")
def lower_cholesky_solve(call: OperatorCall) -> SymbolicTensor:
    """Lower the solution of a system by the factor and its transpose; one triangle of it counts."""
    right, factor = (call.dispatch.to_symbol(v) for v in call.args[:2])
    _check_double(call, factor.dtype)
    with call.dispatch:
        lower = torch.triu(factor).mT if call.argument(2, "upper", False) else torch.tril(factor)
    # With their product the condition would be squared.
    ids = call.dispatch.to_symbol(lower).ids
    half = _solve(call, ids, right.ids, transposed=False)
    return SymbolicTensor(_solve(call, ids, half, transposed=True), factor.dtype)


def _expand_determinant(call: OperatorCall, rows: Sequence[Sequence[int]]) -> Expr:
    """Expand a determinant along its rows (Laplace). Without a division it has its derivatives for a singular matrix,
    too."""
    minors: dict[tuple[int, ...], Expr] = {(): call.make_constant(1, call.args[0].dtype)}
    for size, row in enumerate(rows, 1):
        larger = {}
        for columns in itertools.combinations(range(len(rows)), size):
            terms = []
            for place, column in enumerate(columns):
                term = Expr(call.graph, row[column]) * minors[columns[:place] + columns[place + 1 :]]
                terms.append(term if (size - 1 - place) % 2 == 0 else -term)
            larger[columns] = functools.reduce(operator.add, terms)
        minors = larger
    (determinant,) = minors.values()
    return determinant


@lowers("linalg_lu_solve")
def lower_lu_solve(call: OperatorCall) -> SymbolicTensor:
    """Lower ``linalg_lu_solve`` of factors and pivots that the graph made of one matrix."""
    factors, pivots, right = call.args
    matrix, other = (s.factored_matrix if isinstance(s, SymbolicTensor) else None for s in (factors, pivots))
    if matrix is None or other is None or not torch.equal(matrix, other):
        what = "linalg_lu_solve of factors and pivots that do not belong to one matrix of the graph"
        raise call.dispatch.unsupported_error(what)
    if isinstance(right, SymbolicTensor) and right.factored_matrix is not None:
        raise call.dispatch.unsupported_error("linalg_lu_solve with the factors of a matrix as right side")
    adjoint, sides = bool(call.kwargs.get("adjoint", False)), call.dispatch.to_symbol(right).ids
    if call.kwargs.get("left", True):
        return SymbolicTensor(_solve(call, matrix, sides, transposed=adjoint), factors.dtype)
    return SymbolicTensor(_solve(call, matrix, sides.mT, transposed=not adjoint).mT, factors.dtype)


@lowers("linalg_inv_ex")
def lower_inverse(call: OperatorCall) -> tuple[SymbolicTensor, ...]:
    """Lower the inverse of a matrix, and whether it is singular."""
    matrix = call.dispatch.to_symbol(call.args[0])
    _check_double(call, matrix.dtype)
    unit = call.dispatch.to_symbol(torch.eye(matrix.ids.shape[-1], dtype=matrix.dtype))
    inverse = _solve(call, matrix.ids, unit.ids, transposed=False)
    return SymbolicTensor(inverse, matrix.dtype), _find_zero_pivots(call, matrix.ids)

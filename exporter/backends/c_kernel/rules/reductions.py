"""Lowering rules of reductions: sums, norms, products of matrices."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from exporter.backends.c_kernel.dtype_promotion import add_scaled, cast_to_symbol, infer_dtype
from exporter.backends.c_kernel.expression_graph import BOOL
from exporter.backends.c_kernel.registry import Rule, lowers
from exporter.backends.c_kernel.symbolic_tensor import SymbolicDispatch, SymbolicTensor, get_dtype_name


def _reduce(
    symbol: SymbolicTensor, dims: Any, *, keepdim: bool, fold: Callable[[list[int]], int], dtype: torch.dtype
) -> SymbolicTensor:
    ids = symbol.ids
    if dims is None or dims == []:
        dims = list(range(ids.ndim))
    dims = [d % max(ids.ndim, 1) for d in ([dims] if isinstance(dims, int) else dims)]
    outer_dims = [d for d in range(ids.ndim) if d not in dims]
    permuted = ids.permute(*outer_dims, *dims) if ids.ndim else ids
    outer_shape = [ids.shape[d] for d in outer_dims]
    grouped = permuted.reshape(*outer_shape, -1) if ids.ndim else ids.reshape(1)
    flat = grouped.reshape(-1, grouped.shape[-1]).tolist()
    shape = [1 if d in dims else ids.shape[d] for d in range(ids.ndim)] if keepdim else outer_shape
    return SymbolicTensor(torch.tensor([fold(numbers) for numbers in flat], dtype=torch.int64).reshape(shape), dtype)


def lower_reduction(op: str, empty: float | None) -> Rule:
    """Make the rule of a reduction by the operation ``op``; ``empty`` is the result of no numbers."""

    def lower(lowering: SymbolicDispatch, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> SymbolicTensor:
        dtype = infer_dtype(lowering, func, args, kwargs)
        kind = get_dtype_name(dtype, lowering.graph.origin)
        dims = args[1] if len(args) > 1 else kwargs.get("dim")
        keep = bool(args[2] if len(args) > 2 else kwargs.get("keepdim", False))
        terms = lowering.graph
        # All largest numbers share the derivative, which a pair of them does not know.
        extra = ("of many",) if op in ("max", "min") else ()

        def fold(numbers: list[int]) -> int:
            if not numbers:
                return terms.add_constant(empty or 0.0, kind)
            whole = functools.reduce(lambda a, b: terms.add(op, (a, b), kind, extra), numbers)
            count = terms.add_constant(float(len(numbers)), kind)
            return terms.add("div", (whole, count), kind) if func.overloadpacket.__name__ == "mean" else whole

        return _reduce(cast_to_symbol(lowering, args[0], dtype), dims, keepdim=keep, fold=fold, dtype=dtype)

    return lower


def lower_cumulative(op: str) -> Rule:
    """Make the rule of a cumulative sum or product."""

    def lower(lowering: SymbolicDispatch, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> SymbolicTensor:
        dtype = infer_dtype(lowering, func, args, kwargs)
        kind = get_dtype_name(dtype, lowering.graph.origin)
        ids = cast_to_symbol(lowering, args[0], dtype).ids.movedim(args[1], -1).clone()
        for i in range(1, ids.shape[-1]):
            pairs = zip(ids[..., i - 1].reshape(-1).tolist(), ids[..., i].reshape(-1).tolist(), strict=True)
            made = [lowering.graph.add(op, pair, kind) for pair in pairs]
            ids[..., i] = torch.tensor(made, dtype=torch.int64).reshape(ids.shape[:-1])
        return SymbolicTensor(ids.movedim(-1, args[1]), dtype)

    return lower


@lowers("linalg_vector_norm")
def lower_norm(dispatch: SymbolicDispatch, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> SymbolicTensor:
    """Lower a Euclidean norm."""
    order = args[1] if len(args) > 1 else kwargs.get("ord", 2)
    if float(order) != 2.0:
        raise dispatch.unsupported_error(f"a norm of order {order}", "the Euclidean norm")
    dtype = args[0].dtype
    dtype_name = get_dtype_name(dtype, dispatch.graph.origin)
    graph = dispatch.graph

    def fold(numbers: list[int]) -> int:
        squares = [graph.add("mul", (i, i), dtype_name) for i in numbers]
        total = functools.reduce(lambda a, b: graph.add("add", (a, b), dtype_name), squares)
        return graph.add("sqrt", (total,), dtype_name, ("norm",))

    dims = args[2] if len(args) > 2 else kwargs.get("dim")
    keepdim = bool(args[3] if len(args) > 3 else kwargs.get("keepdim", False))
    return _reduce(dispatch.to_symbol(args[0]), dims, keepdim=keepdim, fold=fold, dtype=dtype)


def multiply_matrices(dispatch: SymbolicDispatch, a: SymbolicTensor, b: SymbolicTensor) -> SymbolicTensor:
    """Lower ``bmm`` of ``(..., m, k)`` and ``(..., k, n)``."""
    dtype = torch.promote_types(a.dtype, b.dtype)
    dtype_name = get_dtype_name(dtype, dispatch.graph.origin)
    graph = dispatch.graph
    *batch_shape, m, k = a.ids.shape
    n = b.ids.shape[-1]
    left, right = a.ids.reshape(-1, m, k).tolist(), b.ids.reshape(-1, k, n).tolist()
    nodes = []
    for x, y in zip(left, right, strict=True):
        for row in x:
            for j in range(n):
                products = [graph.add("mul", (row[i], y[i][j]), dtype_name) for i in range(k)]
                zero = graph.add_constant(0, dtype_name)
                nodes.append(
                    functools.reduce(lambda p, q: graph.add("add", (p, q), dtype_name), products) if products else zero
                )
    return SymbolicTensor(torch.tensor(nodes, dtype=torch.int64).reshape(*batch_shape, m, n), dtype)


@lowers("mm", "bmm", "mv", "dot", "vdot", "addmm", "addmv", "baddbmm")
def lower_matmul(
    dispatch: SymbolicDispatch, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> SymbolicTensor:
    """Lower ``mm``, ``bmm``, ``mv``, ``dot``, and ``addmm``, ``baddbmm`` with what they add."""
    name = func.overloadpacket.__name__
    adds = name in ("addmm", "baddbmm", "addmv")
    first, second = (dispatch.to_symbol(v) for v in (args[1:3] if adds else args[:2]))
    vector = name in ("mv", "dot", "vdot", "addmv")
    left = SymbolicTensor(first.ids[None], first.dtype) if first.ids.ndim == 1 else first
    right = SymbolicTensor(second.ids[:, None], second.dtype) if vector else second
    result = multiply_matrices(dispatch, left, right)
    if vector:
        result = SymbolicTensor(result.ids[..., 0], result.dtype)
    if first.ids.ndim == 1:
        result = SymbolicTensor(result.ids[0], result.dtype)
    if not adds:
        return result
    dtype_name = get_dtype_name(result.dtype, dispatch.graph.origin)
    alpha, beta = (dispatch.graph.add_constant(kwargs.get(n, 1), dtype_name) for n in ("alpha", "beta"))

    def add(x: int, y: int) -> int:
        graph = dispatch.graph
        return graph.add(
            "add", (add_scaled(graph, dtype_name, y, beta), add_scaled(graph, dtype_name, x, alpha)), dtype_name
        )

    return dispatch.map_elements(add, result.dtype, result, dispatch.to_symbol(args[0]))


@lowers("linalg_cross")
def lower_cross(
    dispatch: SymbolicDispatch, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> SymbolicTensor:
    """Lower a cross product along a dimension."""
    dim = kwargs.get("dim", args[2] if len(args) > 2 else -1)
    dtype = args[0].dtype
    dtype_name = get_dtype_name(dtype, dispatch.graph.origin)
    a, b = (i.movedim(dim, 0) for i in torch.broadcast_tensors(*(dispatch.to_symbol(v).ids for v in args[:2])))

    def compute_component(i: int, j: int) -> torch.Tensor:
        def one(p: int, q: int, r: int, s: int) -> int:
            terms = dispatch.graph
            return terms.add(
                "sub", (terms.add("mul", (p, q), dtype_name), terms.add("mul", (r, s), dtype_name)), dtype_name
            )

        return dispatch.map_elements(one, dtype, *(SymbolicTensor(v, dtype) for v in (a[i], b[j], a[j], b[i]))).ids

    return SymbolicTensor(
        torch.stack([compute_component(1, 2), compute_component(2, 0), compute_component(0, 1)]).movedim(0, dim), dtype
    )


def lower_any_all(op: str) -> Rule:
    """Make the rule of ``any`` (``or``) or ``all`` (``and``)."""

    def lower(lowering: SymbolicDispatch, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> SymbolicTensor:
        terms = lowering.graph
        dims = args[1] if len(args) > 1 else kwargs.get("dim")
        keep = bool(args[2] if len(args) > 2 else kwargs.get("keepdim", False))

        def fold(numbers: list[int]) -> int:
            rows = functools.reduce(lambda found, i: found | terms.batch_rows[i], numbers, 0)
            if rows & (rows - 1):
                return terms.add_mixed("any" if op == "or" else "all")
            return functools.reduce(lambda a, b: terms.add(op, (a, b), BOOL), numbers)

        of = lowering.cast(lowering.to_symbol(args[0]), torch.bool)
        return _reduce(of, dims, keepdim=keep, fold=fold, dtype=torch.bool)

    return lower


lowers("sum")(lower_reduction("add", 0.0))
lowers("mean")(lower_reduction("add", math.nan))
lowers("prod")(lower_reduction("mul", 1.0))
lowers("amax")(lower_reduction("max", None))
lowers("amin")(lower_reduction("min", None))
lowers("any")(lower_any_all("or"))
lowers("all")(lower_any_all("and"))
lowers("cumsum")(lower_cumulative("add"))
lowers("cumprod")(lower_cumulative("mul"))

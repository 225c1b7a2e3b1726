"""Lowering rules of reductions: sums, norms, products of matrices."""

from __future__ import annotations

import functools
import math
import operator

import torch

from exporter.backends.c_kernel.expression_graph import Expr, Formula
from exporter.backends.c_kernel.symbolic_tensor import OperatorCall, Rule, SymbolicTensor, lowers, make_symbol


def _reduce(call: OperatorCall, symbol: SymbolicTensor, position: int, fold: Formula) -> SymbolicTensor:
    """Fold the numbers along the dimensions of the argument at ``position`` (by default all); ``keepdim`` is next."""
    ids, dims = symbol.ids, call.argument(position, "dim")
    dims = list(range(ids.ndim)) if dims is None or dims == [] else [dims] if isinstance(dims, int) else dims
    dims = [d % max(ids.ndim, 1) for d in dims]
    outer_dims = [d for d in range(ids.ndim) if d not in dims]
    outer_shape = [ids.shape[d] for d in outer_dims]
    grouped = ids.permute(*outer_dims, *dims).reshape(*outer_shape, -1) if ids.ndim else ids.reshape(1)
    rows = grouped.reshape(-1, grouped.shape[-1]).tolist()
    keepdim = call.argument(position + 1, "keepdim", False)
    shape = [1 if d in dims else ids.shape[d] for d in range(ids.ndim)] if keepdim else outer_shape
    return make_symbol([fold([Expr(call.graph, i) for i in row]).index for row in rows], shape, symbol.dtype)


def lower_reduction(op: str, empty: float = 0.0) -> Rule:
    """Make the rule of a reduction by the operation ``op``; ``empty`` is the result of no numbers."""
    # All largest numbers share the derivative, which a pair of them does not know.
    extra = ("of many",) if op in ("max", "min") else ()

    def lower(call: OperatorCall) -> SymbolicTensor:
        symbol = call.cast(call.args[0], call.infer_dtype())

        def fold(numbers: list[Expr]) -> Expr:
            if not numbers:
                return call.make_constant(empty, symbol.dtype)
            total = functools.reduce(lambda x, y: x.apply(op, y, extra=extra), numbers)
            return total / float(len(numbers)) if call.name == "mean" else total

        return _reduce(call, symbol, 1, fold)

    return lower


def lower_cumulative(op: str) -> Rule:
    """Make the rule of a cumulative sum or product."""

    def lower(call: OperatorCall) -> SymbolicTensor:
        dim, dtype = call.args[1], call.infer_dtype()
        symbol = call.cast(call.args[0], dtype)
        if not symbol.ids.ndim:
            return symbol
        ids = symbol.ids.movedim(dim, -1).clone()
        for i in range(1, ids.shape[-1]):
            pair = (SymbolicTensor(ids[..., k], dtype) for k in (i - 1, i))
            ids[..., i] = call.apply(lambda x, y: x.apply(op, y), dtype, *pair).ids
        return SymbolicTensor(ids.movedim(-1, dim), dtype)

    return lower


@lowers("linalg_vector_norm")
def lower_norm(call: OperatorCall) -> SymbolicTensor:
    """Lower a norm of vectors."""
    order, symbol = float(call.argument(1, "ord", 2)), call.cast(call.args[0], call.infer_dtype())
    if not symbol.ids.numel():
        raise call.dispatch.unsupported_error("a norm of no numbers", "a vector with numbers")
    return _reduce(call, symbol, 2, lambda numbers: _fold_norm(numbers, order))


def _fold_norm(numbers: list[Expr], order: float) -> Expr:
    """Return a vector norm.

    https://docs.pytorch.org/docs/stable/generated/torch.linalg.vector_norm.html"""
    if order == 2.0:
        return functools.reduce(operator.add, [x * x for x in numbers]).apply("sqrt", extra=("norm",))
    sizes = [x.apply("abs") for x in numbers]
    if math.isinf(order):
        name = "max" if order > 0 else "min"
        return functools.reduce(lambda x, y: x.apply(name, y, extra=("of many",)), sizes)
    if order == 0.0:
        terms = [x.equals(0.0).apply("where", x.match(0.0), x.match(1.0), dtype=x.dtype) for x in numbers]
        return functools.reduce(operator.add, terms)
    if order == 1.0:
        return functools.reduce(operator.add, sizes)
    total = functools.reduce(operator.add, [x.apply("pow", order, extra=("norm",)) for x in sizes])
    return total.apply("pow", 1.0 / order, extra=("norm",))


def multiply_matrices(call: OperatorCall, a: SymbolicTensor, b: SymbolicTensor) -> SymbolicTensor:
    """Lower ``bmm`` of ``(..., m, k)`` and ``(..., k, n)``."""
    dtype = torch.promote_types(a.dtype, b.dtype)
    *batch_shape, m, k = a.ids.shape
    count, n = math.prod(batch_shape), b.ids.shape[-1]
    left = call.cast(a, dtype).ids.reshape(count, m, k).tolist()
    right = call.cast(b, dtype).ids.reshape(count, k, n).mT.tolist()

    def multiply(row: list[int], column: list[int]) -> int:
        pairs = zip(row, column, strict=True)
        products = [Expr(call.graph, p) * Expr(call.graph, q) for p, q in pairs]
        return (functools.reduce(operator.add, products) if products else call.make_constant(0, dtype)).index

    nodes = [multiply(row, column) for x, y in zip(left, right, strict=True) for row in x for column in y]
    return make_symbol(nodes, (*batch_shape, m, n), dtype)


@lowers("mm", "bmm", "mv", "dot", "vdot", "addmm", "addmv", "baddbmm")
def lower_matmul(call: OperatorCall) -> SymbolicTensor:
    """Lower ``mm``, ``bmm``, ``mv``, ``dot``, and ``addmm``, ``baddbmm`` with what they add."""
    adds, is_vector = call.name in ("addmm", "baddbmm", "addmv"), call.name in ("mv", "dot", "vdot", "addmv")
    first, second = (call.dispatch.to_symbol(v) for v in (call.args[1:3] if adds else call.args[:2]))
    left = SymbolicTensor(first.ids[None], first.dtype) if first.ids.ndim == 1 else first
    right = SymbolicTensor(second.ids[:, None], second.dtype) if is_vector else second
    product = multiply_matrices(call, left, right)
    ids = product.ids[..., 0] if is_vector else product.ids
    product = SymbolicTensor(ids[0] if first.ids.ndim == 1 else ids, product.dtype)
    alpha, beta = (call.kwargs.get(name, 1) for name in ("alpha", "beta"))

    def add(x: Expr, y: Expr) -> Expr:
        return (y if beta == 1 else y * beta) + (x if alpha == 1 else x * alpha)

    return call.apply(add, product.dtype, product, call.args[0]) if adds else product


@lowers("addbmm")
def lower_sum_of_products(call: OperatorCall) -> torch.Tensor:
    """Lower the sum of a batch's products of matrices, added to another matrix."""
    alpha, beta = (call.kwargs.get(name, 1) for name in ("alpha", "beta"))
    with call.dispatch:
        total = torch.bmm(*call.args[1:3]).sum(0)
        total = total if alpha == 1 else alpha * total
        # What counts 0 times is not looked at.
        return total if beta == 0 else total + (call.args[0] if beta == 1 else beta * call.args[0])


@lowers("_cdist_forward")
def lower_distances(call: OperatorCall) -> torch.Tensor:
    """Lower the distances of all pairs of rows."""
    x, y, order = (*map(call.dispatch.to_symbol, call.args[:2]), call.args[2])
    with call.dispatch:
        return torch.linalg.vector_norm(x.unsqueeze(-2) - y.unsqueeze(-3), order, dim=-1)


@lowers("linalg_cross")
def lower_cross(call: OperatorCall) -> SymbolicTensor:
    """Lower a cross product along a dimension."""
    dim, dtype = call.argument(2, "dim", -1), call.args[0].dtype
    ids = torch.broadcast_tensors(*(call.dispatch.to_symbol(v).ids for v in call.args[:2]))
    a, b = ([SymbolicTensor(part, dtype) for part in i.movedim(dim, 0)] for i in ids)

    def compute_component(i: int, j: int) -> torch.Tensor:
        return call.apply(lambda p, q, r, s: p * q - r * s, dtype, a[i], b[j], a[j], b[i]).ids

    components = [compute_component(1, 2), compute_component(2, 0), compute_component(0, 1)]
    return SymbolicTensor(torch.stack(components).movedim(0, dim), dtype)


def lower_any_all(op: str) -> Rule:
    """Make the rule of ``any`` (``or``) or ``all`` (``and``)."""

    def lower(call: OperatorCall) -> SymbolicTensor:
        def fold(numbers: list[Expr]) -> Expr:
            rows = functools.reduce(operator.or_, (call.graph.batch_rows[x.index] for x in numbers), 0)
            if rows & (rows - 1):
                return Expr(call.graph, call.graph.add_mixed("any" if op == "or" else "all"))
            return functools.reduce(lambda x, y: x.apply(op, y), numbers)

        return _reduce(call, call.cast(call.args[0], torch.bool), 1, fold)

    return lower


lowers("sum")(lower_reduction("add"))
lowers("mean")(lower_reduction("add", math.nan))
lowers("prod")(lower_reduction("mul", 1.0))
lowers("amax")(lower_reduction("max"))
lowers("amin")(lower_reduction("min"))
lowers("any")(lower_any_all("or"))
lowers("all")(lower_any_all("and"))
lowers("cumsum")(lower_cumulative("add"))
lowers("cumprod")(lower_cumulative("mul"))

"""Lowering rules of sliding windows: convolutions, and means and extrema of windows."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from exporter.backends.c_kernel.expression_graph import BOOL, I64, Expr, where
from exporter.backends.c_kernel.symbolic_tensor import OperatorCall, SymbolicTensor, lowers, make_symbol

# In the place of a node: what lies outside.
OUTSIDE = -1


def _repeat(value: Any, count: int) -> list[int]:
    """Return one number for each dimension; a single one is that of all."""
    values = [value] if isinstance(value, int) else list(value)
    return values * count if len(values) == 1 else values


def _slide(ids: torch.Tensor, sizes: Sequence[int], strides: Sequence[int], dilations: Sequence[int]) -> torch.Tensor:
    """Return the windows over the last dimensions, which come last."""
    count = len(sizes)
    for dim, (size, stride, dilation) in enumerate(zip(sizes, strides, dilations, strict=True), ids.ndim - count):
        ids = ids.unfold(dim, dilation * (size - 1) + 1, stride)[..., ::dilation]
    return ids


def _pad(ids: torch.Tensor, before: Sequence[int], after: Sequence[int]) -> torch.Tensor:
    """Return nodes with ``OUTSIDE`` around the last dimensions; sizes below 0 cut some off."""
    pairs = zip(reversed(before), reversed(after), strict=True)
    return functional.pad(ids, list(itertools.chain(*pairs)), value=OUTSIDE)


@lowers("convolution")
def lower_convolution(call: OperatorCall) -> SymbolicTensor:
    """Lower a convolution; the transposed one is that of the numbers at a distance, with the mirrored weights."""
    x, weight, bias, stride, padding, dilation, is_transposed, extra, groups = call.args[:9]
    dtype = torch.promote_types(x.dtype, weight.dtype)
    data, weights = (call.cast(v, dtype).ids for v in (x, weight))
    count = weights.ndim - 2
    strides, paddings, dilations, extras = (_repeat(v, count) for v in (stride, padding, dilation, extra))
    sizes = weights.shape[2:]
    if is_transposed:
        weights = _mirror(weights, groups)
        data, strides = _spread(data, strides), [1] * count
        before = [d * (k - 1) - p for d, k, p in zip(dilations, sizes, paddings, strict=True)]
        after = [b + e for b, e in zip(before, extras, strict=True)]
    else:
        before = after = paddings
    windows = _slide(_pad(data, before, after), sizes, strides, dilations)
    # (N, groups, channels, places, window) and (groups, outputs, channels, window)
    rows, outer, channels = windows.shape[0], windows.shape[2 : 2 + count], weights.shape[1]
    places, size = math.prod(outer), math.prod(sizes)
    grouped = windows.reshape(rows, groups, channels, places, size).movedim(3, 2)
    grouped = grouped.reshape(rows, groups, places, channels * size)
    factors = weights.reshape(groups, weights.shape[0] // groups, channels * size).tolist()
    biases = None if bias is None else call.cast(bias, dtype).ids.tolist()
    nodes = [
        _sum_products(call, row, factor, dtype, None if biases is None else biases[group * len(factors[0]) + i])
        for sample in grouped.tolist()
        for group, own in enumerate(sample)
        for i, factor in enumerate(factors[group])
        for row in own
    ]
    return make_symbol(nodes, (rows, weights.shape[0], *outer), dtype)


def _sum_products(
    call: OperatorCall, row: Sequence[int], factors: Sequence[int], dtype: torch.dtype, bias: int | None
) -> int:
    pairs = zip(row, factors, strict=True)
    terms = [Expr(call.graph, i) * Expr(call.graph, j) for i, j in pairs if i != OUTSIDE]
    terms += [] if bias is None else [Expr(call.graph, bias)]
    return (functools.reduce(operator.add, terms) if terms else call.make_constant(0, dtype)).index


def _mirror(weights: torch.Tensor, groups: int) -> torch.Tensor:
    """Return the weights (inputs, outputs / groups, ...) of a transposed convolution as those of a plain one."""
    inputs, outputs, *sizes = weights.shape
    parted = weights.reshape(groups, inputs // groups, outputs, *sizes).transpose(1, 2)
    return parted.reshape(groups * outputs, inputs // groups, *sizes).flip(tuple(range(2, weights.ndim)))


def _spread(ids: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    """Return nodes at distances of ``strides`` along the last dimensions."""
    shape = [(size - 1) * stride + 1 for size, stride in zip(ids.shape[2:], strides, strict=True)]
    spread = ids.new_full((*ids.shape[:2], *shape), OUTSIDE)
    spread[(..., *(slice(None, None, stride) for stride in strides))] = ids
    return spread


@dataclass(frozen=True)
class _Windows:
    """Where windows over the last dimensions are: a number for each of those."""

    sizes: list[int]
    strides: list[int]
    paddings: list[int]
    dilations: list[int]
    has_ceiling: bool

    def count_along(self, shape: Sequence[int]) -> list[int]:
        """Return how many windows there are along each dimension."""
        counts = []
        for n, k, s, p, d in zip(shape, self.sizes, self.strides, self.paddings, self.dilations, strict=True):
            reach = n + 2 * p - d * (k - 1) - 1
            # A window more, where it begins inside or in the padding before.
            counts.append(reach // s + 1 + (self.has_ceiling and reach % s > 0 and (reach // s + 1) * s < n + p))
        return counts

    def take(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the nodes of each window, which come last; ``OUTSIDE`` of the numbers."""
        count = len(self.sizes)
        shape = ids.shape[-count:]
        options = zip(
            shape, self.count_along(shape), self.sizes, self.strides, self.paddings, self.dilations, strict=True
        )
        after = [(windows - 1) * s + d * (k - 1) + 1 - n - p for n, windows, k, s, p, d in options]
        nodes = _slide(_pad(ids, self.paddings, after), self.sizes, self.strides, self.dilations)
        return nodes.reshape(*nodes.shape[:-count], math.prod(self.sizes))

    def count_numbers(self, shape: Sequence[int], *, has_padding: bool) -> torch.Tensor:
        """Return how many numbers each window counts, which for one that reaches beyond the padding are fewer."""
        total = torch.ones([1] * len(shape), dtype=torch.int64)
        options = zip(shape, self.count_along(shape), self.sizes, self.strides, self.paddings, strict=True)
        for dim, (n, windows, k, s, p) in enumerate(options):
            starts = [i * s - p for i in range(windows)]
            ends = [min(start + k, n + p) for start in starts]
            pairs = zip(starts, ends, strict=True)
            own = [end - start if has_padding else min(end, n) - max(start, 0) for start, end in pairs]
            total = total * torch.tensor(own).reshape([-1 if i == dim else 1 for i in range(len(shape))])
        return total


def _read_windows(call: OperatorCall, count: int, dilation: Any, *, has_ceiling: bool) -> _Windows:
    sizes = _repeat(call.args[1], count)
    stride, padding = call.argument(2, "stride"), call.argument(3, "padding", 0)
    strides = sizes if stride in (None, [], ()) else _repeat(stride, count)
    return _Windows(sizes, strides, _repeat(padding, count), _repeat(dilation, count), has_ceiling)


@lowers("avg_pool2d", "avg_pool3d")
def lower_mean_of_windows(call: OperatorCall) -> SymbolicTensor:
    """Lower the means of windows; the numbers around count as zeros, unless they are left out of the count."""
    count, symbol = 2 if call.name == "avg_pool2d" else 3, call.dispatch.to_symbol(call.args[0])
    windows = _read_windows(call, count, 1, has_ceiling=call.argument(4, "ceil_mode", False))
    counts_padding, divisor = call.argument(5, "count_include_pad", True), call.argument(6, "divisor_override")
    nodes = windows.take(symbol.ids)
    divisors = windows.count_numbers(symbol.ids.shape[-count:], has_padding=counts_padding)

    def average(row: list[int], own: int) -> int:
        terms = [Expr(call.graph, i) for i in row if i != OUTSIDE]
        total = functools.reduce(operator.add, terms) if terms else call.make_constant(0, symbol.dtype)
        return (total / float(divisor or own)).index

    rows = nodes.reshape(-1, nodes.shape[-1]).tolist()
    pairs = zip(rows, divisors.expand(nodes.shape[:-1]).reshape(-1).tolist(), strict=True)
    return make_symbol([average(row, own) for row, own in pairs], nodes.shape[:-1], symbol.dtype)


@lowers("max_pool2d_with_indices", "max_pool3d_with_indices")
def lower_largest_of_windows(call: OperatorCall) -> tuple[SymbolicTensor, ...]:
    """Lower the largest numbers of windows, and their places: the first one, or the last NaN."""
    count, symbol = 2 if call.name.startswith("max_pool2d") else 3, call.dispatch.to_symbol(call.args[0])
    windows = _read_windows(
        call, count, call.argument(4, "dilation", 1), has_ceiling=call.argument(5, "ceil_mode", False)
    )
    shape = symbol.ids.shape[-count:]
    places = torch.arange(math.prod(shape)).reshape(shape).expand(symbol.ids.shape)
    nodes, places = windows.take(symbol.ids), windows.take(places)
    results: list[list[int]] = [[], []]
    flat = nodes.shape[-1]
    for row, own in zip(nodes.reshape(-1, flat).tolist(), places.reshape(-1, flat).tolist(), strict=True):
        pairs = [
            (Expr(call.graph, node), Expr(call.graph, call.graph.add_constant(place, I64)))
            for node, place in zip(row, own, strict=True)
            if node != OUTSIDE
        ]
        if not pairs:
            raise call.dispatch.unsupported_error(f"aten::{call.name} with a window of no numbers")
        largest, place = functools.reduce(_take_larger, pairs)
        results[0].append(largest.index)
        results[1].append(place.index)
    dtypes = (symbol.dtype, torch.int64)
    return tuple(make_symbol(ids, nodes.shape[:-1], dtype) for ids, dtype in zip(results, dtypes, strict=True))


def _take_larger(best: tuple[Expr, Expr], x: tuple[Expr, Expr]) -> tuple[Expr, Expr]:
    is_better = best[0] < x[0]
    if x[0].dtype.startswith("float"):
        is_better = is_better.apply("or", x[0].apply("isnan", dtype=BOOL), dtype=BOOL)
    return where(is_better, x[0], best[0]), where(is_better, x[1], best[1])

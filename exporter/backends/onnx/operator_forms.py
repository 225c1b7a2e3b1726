"""Forms of other operators where torch.onnx's own are missing, or give other numbers.

onnxruntime (1.31) has kernels of Det in float32 only; the sources of others are named."""

from __future__ import annotations

import functools
import itertools
import math
import operator
import string
from collections.abc import Callable, Sequence
from typing import Any

import torch

from exporter.backends.onnx.gaussian_elimination import LINEAR_ALGEBRA, lu_factor
from exporter.common.torch_internals import decomposition_table

# Products that are written one by one.
LONGEST_PRODUCT = 64


def aten_div(a: torch.Tensor, b: torch.Tensor, rounding_mode: str | None = None) -> torch.Tensor:
    """Return ``torch.div``; integers are divided as integers, which torch.onnx converts to float32."""
    is_integral = not a.dtype.is_floating_point and not (isinstance(b, torch.Tensor) and b.dtype.is_floating_point)
    if rounding_mode is None or not is_integral or isinstance(b, float):
        return torch.div(a, b, rounding_mode=rounding_mode)
    down = torch.floor_divide(a, b)
    if rounding_mode == "floor":
        return down
    remainder = a - down * b
    has_other_sign = (remainder != 0) & ((a < 0) != (b < 0))
    return down + has_other_sign.to(down.dtype)


def det(a: torch.Tensor) -> torch.Tensor:
    """Return the determinant."""
    return det_and_factors(a)[0]


def det_and_factors(a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the determinant, which is the product of pivots with a sign for each exchange of rows, the LU factors and
    the pivots: those of the transpose of a contiguous matrix, as torch has them."""
    n = a.shape[-1]
    if n == 0:
        return a.new_ones(a.shape[:-2]), a, a.new_zeros(a.shape[:-1], dtype=torch.int32)
    lu, pivots, _ = lu_factor(a.mT if a.is_contiguous() and not a.is_complex() else a)
    product = lu[..., 0, 0]
    for k in range(1, n):
        product = product * lu[..., k, k]
    for k in range(n):
        product = torch.where(pivots[..., k] == k + 1, product, -product)
    # After a zero pivot the remaining factors have no meaning.
    zero = torch.stack([lu[..., k, k] == 0 for k in range(n)]).any(0)
    return torch.where(zero, 0.0, product), lu, pivots


def searchsorted(
    boundaries: torch.Tensor,
    values: torch.Tensor,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the number of boundaries before each value, by torch's own bisection: also what it finds among boundaries
    that are not sorted is the same. All of them are before NaN.

    ``cus_lower_bound`` in aten/src/ATen/native/BucketizationUtils.h and Bucketization.cpp."""
    if sorter is not None:
        boundaries = torch.gather(boundaries, -1, sorter)
    right, count = right or side == "right", boundaries.shape[-1]
    start = torch.zeros_like(values, dtype=torch.int64)
    end = start + count
    for _ in range(count.bit_length() if isinstance(count, int) else 63):
        middle = start + (end - start) // 2
        place = middle.clamp(max=count - 1)
        bound = boundaries[place] if boundaries.ndim == 1 else torch.gather(boundaries, -1, place)
        is_behind = ~(bound > values if right else bound >= values)
        is_open = start < end
        start = torch.where(is_open & is_behind, middle + 1, start)
        end = torch.where(is_open & ~is_behind, middle, end)
    return start.to(torch.int32) if out_int32 else start


def einsum(equation: str, operands: Sequence[torch.Tensor], path: Sequence[int] | None = None) -> torch.Tensor:
    """Return the sum, with letters in the place of an ellipsis: in ONNX it has as many dimensions in all operands.

    A letter has one size in ONNX, and none that is broadcast: https://onnx.ai/onnx/operators/onnx__Einsum.html"""
    if "..." in equation:
        equation = _name_ellipsis(equation.replace(" ", ""), [operand.ndim for operand in operands])
    return torch.ops.aten.einsum.default(equation, _widen_operands(equation, operands), path=path)


def _widen_operands(equation: str, operands: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    terms = equation.partition("->")[0].replace(" ", "").split(",")
    # Open sizes are never compared: that would settle them.
    is_one = lambda size: isinstance(size, int) and size == 1  # noqa: E731
    sizes: dict[str, Any] = {}
    for term, operand in zip(terms, operands, strict=True):
        sizes |= {c: size for c, size in zip(term, operand.shape, strict=True) if c not in sizes or not is_one(size)}
    widened = []
    for term, operand in zip(terms, operands, strict=True):
        is_narrow = any(is_one(size) and not is_one(sizes[c]) for c, size in zip(term, operand.shape, strict=True))
        widened.append(operand.expand([sizes[c] for c in term]) if is_narrow else operand)
    return widened


def _name_ellipsis(equation: str, ranks: Sequence[int]) -> str:
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    counts = [rank + len("...") - len(term) for term, rank in zip(terms, ranks, strict=True) if "..." in term]
    most = max(counts, default=0)
    unused = "".join(letter for letter in string.ascii_letters if letter not in equation)[:most]
    named, remaining = [], iter(counts)
    for term in terms:
        # Dimensions are aligned at the last one.
        named.append(term.replace("...", unused[most - next(remaining) :]) if "..." in term else term)
    if not arrow:
        # What torch gives without an arrow: the ellipsis, then each letter that stands once.
        right = "..." + "".join(sorted(c for c in {*left} - {*",."} if left.count(c) == 1))
    return f"{','.join(named)}->{right.replace('...', unused)}"


def cumprod(x: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Return the products of the first numbers along a dimension: one after the other, and for long ones each of twice
    as many as in the step before, which may overflow elsewhere.

    Hillis and Steele, Data Parallel Algorithms, Communications of the ACM 29 (1986)."""
    x = x.to(dtype or (x.dtype if x.is_floating_point() else torch.int64))
    if not x.ndim:
        return x
    rows, distance = x.movedim(dim, -1), 1
    if isinstance(rows.shape[-1], int) and 0 < rows.shape[-1] <= LONGEST_PRODUCT:
        return torch.stack(list(itertools.accumulate(rows.unbind(-1), operator.mul)), -1).movedim(-1, dim)
    while distance < rows.shape[-1]:
        ones = torch.ones_like(rows[..., :distance])
        rows = rows * torch.cat([ones, rows[..., :-distance]], -1)
        distance *= 2
    return rows.movedim(-1, dim)


def vector_norm(
    x: torch.Tensor,
    order: float = 2.0,
    dim: int | list[int] | None = None,
    keepdim: bool = False,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Return a norm; for an order that ONNX has no reduction of, torch.onnx writes its inverse as float32."""
    if order in (0.0, 1.0, 2.0) or math.isinf(order):
        return torch.ops.aten.linalg_vector_norm.default(x, order, dim, keepdim, dtype=dtype)
    powers = (x if dtype is None else x.to(dtype)).abs() ** order
    return powers.sum(dim, keepdim=keepdim) ** (1.0 / order)


def cdist(x: torch.Tensor, y: torch.Tensor, p: float = 2.0, compute_mode: int | None = None) -> torch.Tensor:
    """Return the distances of all pairs of rows; torch takes products for many rows, which lose digits of near ones."""
    del compute_mode
    return vector_norm(x.unsqueeze(-2) - y.unsqueeze(-3), p, -1)


def extremum_of_two(name: str, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return ``fmax`` or ``fmin``: NaN counts only beside another one."""
    chosen = (torch.maximum if name == "fmax" else torch.minimum)(x, y)
    if not chosen.is_floating_point():
        return chosen
    x, y = x.to(chosen.dtype), y.to(chosen.dtype)
    return torch.where(torch.isnan(x), y, torch.where(torch.isnan(y), x, chosen))


def linspace(start: Any, end: Any, steps: int, dtype: torch.dtype | None = None, *rest: Any) -> torch.Tensor:
    """Return numbers at equal distances; torch.onnx gives one number of tensors another shape.

    ``linspace_kernel`` in aten/src/ATen/native/cpu/RangeFactoriesKernel.cpp."""
    if not any(isinstance(v, torch.Tensor) for v in (start, end)):
        return torch.linspace(start, end, steps, dtype=dtype)
    dtype = dtype or torch.get_default_dtype()
    first, last = (torch.as_tensor(v).to(dtype).reshape(1) for v in (start, end))
    if steps < 2:
        return first.clone()[:steps]
    places = torch.arange(steps)
    real = dtype if dtype.is_floating_point else torch.float64
    step = (last.to(real) - first.to(real)) / (steps - 1)
    numbers = torch.where(places < steps // 2, first + step * places, last - step * (steps - 1 - places))
    return numbers.to(dtype)


def shift_bits(name: str, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return shifted bits; those of bytes as powers of two, as torch.onnx writes a file that no runtime loads."""
    y = torch.as_tensor(y)
    if torch.result_type(x, y) != torch.uint8:
        return getattr(torch.ops.aten, name).Tensor(x, y)
    power = 2 ** y.to(torch.int64)
    whole = x.to(torch.int64)
    shifted = (whole * power) % 256 if name == "bitwise_left_shift" else torch.div(whole, power, rounding_mode="floor")
    return shifted.to(torch.uint8)


def copysign(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return ``x`` with the sign of ``y``, which zeros have, too."""
    y = torch.as_tensor(y)
    is_negative = (y < 0) | ((y == 0) & (1.0 / y < 0)) if y.is_floating_point() else y < 0
    dtype = torch.result_type(x, y)
    size = x.to(dtype if dtype.is_floating_point else torch.get_default_dtype()).abs()
    return torch.where(is_negative, -size, size)


def cumulate(name: str, x: torch.Tensor, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ``cummax`` or ``cummin`` with the places, the last one of equal numbers; NaN stays. Steps as in
    ``cumprod``."""
    if not x.ndim:
        return x.clone(), torch.zeros_like(x, dtype=torch.int64)
    rows, distance = x.movedim(dim, -1), 1
    places = torch.arange(rows.shape[-1]).expand(rows.shape)
    while distance < rows.shape[-1]:
        before, own = rows[..., :-distance], rows[..., distance:]
        is_kept = before > own if name == "cummax" else before < own
        if x.is_floating_point():
            is_kept = is_kept | (torch.isnan(before) & ~torch.isnan(own))
        chosen = [torch.where(is_kept, v[..., :-distance], v[..., distance:]) for v in (rows, places)]
        rows, places = (torch.cat([v[..., :distance], c], -1) for v, c in zip((rows, places), chosen, strict=True))
        distance *= 2
    return rows.movedim(-1, dim), places.movedim(-1, dim)


def diagonal_scatter(
    x: torch.Tensor, source: torch.Tensor, offset: int = 0, first: int = 0, second: int = 1
) -> torch.Tensor:
    """Return ``x`` with other numbers in a diagonal."""
    y = x.movedim((first, second), (0, 1)).clone()
    places = torch.arange(source.shape[-1])
    y[places + max(-offset, 0), places + max(offset, 0)] = source.movedim(-1, 0)
    return y.movedim((0, 1), (first, second))


def cholesky_inverse(factor: torch.Tensor, upper: bool = False) -> torch.Tensor:
    """Return the inverse of the matrix whose Cholesky factor this is."""
    return cholesky_solve(torch.eye(factor.shape[-1], dtype=factor.dtype).expand(factor.shape), factor, upper)


def cholesky_solve(b: torch.Tensor, factor: torch.Tensor, upper: bool = False) -> torch.Tensor:
    """Return the solution of the system whose matrix has this Cholesky factor, of which one triangle counts."""
    lower = factor.triu().mT if upper else factor.tril()
    solve: Callable[..., torch.Tensor] = LINEAR_ALGEBRA["aten::linalg_solve_triangular"]
    return solve(lower.mT, solve(lower, b, False), True)


def power(x: Any, exponent: Any) -> torch.Tensor:
    """Return a power of numbers of one dtype: that of ONNX's Pow has the dtype of its base, whatever the exponent's is.

    https://onnx.ai/onnx/operators/onnx__Pow.html"""
    if isinstance(x, torch.Tensor) and isinstance(exponent, torch.Tensor) and x.dtype != exponent.dtype:
        dtype = torch.result_type(x, exponent)
        x, exponent = x.to(dtype), exponent.to(dtype)
    return torch.pow(x, exponent)


def join(name: str, tensors: Sequence[torch.Tensor], dim: int = 0) -> torch.Tensor:
    """Return ``cat`` or ``stack`` of tensors of one dtype: ONNX's Concat takes no others."""
    dtype = functools.reduce(torch.promote_types, (t.dtype for t in tensors))
    packet: Any = getattr(torch.ops.aten, name)
    # torch takes one dimension without numbers beside others of any rank.
    is_none = [t.ndim == 1 and isinstance(t.shape[0], int) and t.shape[0] == 0 for t in tensors]
    joined = [t for t, lacks in zip(tensors, is_none, strict=True) if not lacks] if name == "cat" else tensors
    return packet.default([t if t.dtype == dtype else t.to(dtype) for t in joined or tensors], dim)


def copy_into(x: torch.Tensor, source: torch.Tensor, *rest: Any) -> torch.Tensor:
    """Write to ``x``; nothing where it has no numbers: onnxruntime (1.31) does not expand one number to none."""
    return x if any(isinstance(size, int) and size == 0 for size in x.shape) else x.copy_(source)


def median(x: torch.Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """Return the lower median, and along a dimension a place where it is; NaN if there is one.

    ``median_with_indices_impl`` in aten/src/ATen/native/Sorting.cpp, which says no more of the place."""
    if dim is None and isinstance(x.numel(), int) and not x.numel():
        return torch.ops.aten.median.default(x)
    if dim is None or not x.ndim:
        values, _ = _find_median(x.flatten().unsqueeze(0), False)
        return values[0] if dim is None else (values[0], torch.zeros_like(values[0], dtype=torch.int64))
    results = _find_median(x.movedim(dim, -1), keepdim)
    return tuple(result.movedim(-1, dim) for result in results) if keepdim else results


def _find_median(rows: torch.Tensor, keepdim: bool) -> tuple[torch.Tensor, torch.Tensor]:
    ordered, order = sort(rows, -1, False)
    middle = (rows.shape[-1] - 1) // 2
    value, place = (t.narrow(-1, middle, 1) for t in (ordered, order))
    if rows.is_floating_point():
        is_none = torch.isnan(rows)
        has_none = is_none.any(-1, keepdim=True)
        value = torch.where(has_none, math.nan, value)
        place = torch.where(has_none, is_none.to(torch.int64).argmax(-1, keepdim=True), place)
    return (value, place) if keepdim else (value.squeeze(-1), place.squeeze(-1))


def sort(x: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return sorted values and their places: ONNX's TopK keeps the order of equal ones, asked for or not.

    https://onnx.ai/onnx/operators/onnx__TopK.html"""
    dim, descending = rest[-2:]
    return torch.ops.aten.sort.default(x, dim, descending)


def pad(x: torch.Tensor, sizes: Sequence[int], mode: str = "constant", value: float | None = None) -> torch.Tensor:
    """Return ``x`` with numbers around it; in a circle as slices: ONNX has it from opset 19 on, and onnxruntime (1.31)
    not for a tensor without numbers.

    ``_pad_circular_symint`` in aten/src/ATen/native/PadNd.cpp."""
    if mode != "circular":
        return torch.ops.aten.pad.default(x, sizes, mode, value)
    for dim, (before, after) in zip(itertools.count(-1, -1), zip(sizes[::2], sizes[1::2], strict=True), strict=False):
        size = x.shape[dim]
        x = x.narrow(dim, max(-before, 0), size - max(-before, 0) - max(-after, 0))
        size = x.shape[dim]
        first = [x.narrow(dim, size - before, before)] if before > 0 else []
        last = [x.narrow(dim, 0, after)] if after > 0 else []
        x = torch.cat([*first, x, *last], dim)
    return x


def run_in_dtype(
    function: Callable[..., torch.Tensor], x: torch.Tensor, dim: int, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """Run a function in the dtype that is asked for, to which torch.onnx casts what it has computed in another."""
    return function(x if dtype is None else x.to(dtype), dim)


def squeeze(x: torch.Tensor, dims: int | Sequence[int] | None = None) -> torch.Tensor:
    """Return ``x`` without these dimensions where their size is 1: ONNX's operator takes no others."""
    if dims is None:
        return torch.ops.aten.squeeze.default(x)
    chosen = [dims] if isinstance(dims, int) else dims
    fitting = [d for d in chosen if x.ndim and isinstance(x.shape[d], int) and x.shape[d] == 1]
    # Another tensor of the same memory: what changes its shape later must not change that of x.
    return torch.ops.aten.squeeze.dims(x, fitting) if fitting else torch.ops.aten.alias.default(x)


def aminmax(x: torch.Tensor, dim: int | None = None, keepdim: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the smallest and the largest number, along one dimension or of all."""
    dims = [d for d in range(x.ndim) if dim is None or d == dim % x.ndim]
    smallest, largest = _make_extremum("amin"), _make_extremum("amax")
    return smallest(x, dims, keepdim), largest(x, dims, keepdim)


def _make_extremum(name: str) -> Callable[..., torch.Tensor]:
    """Return ``amax`` or ``amin``, which for one number is the number: ONNX's reductions need a dimension."""
    packet: Any = getattr(torch.ops.aten, name)

    def run(x: torch.Tensor, dim: Sequence[int] = (), keepdim: bool = False) -> torch.Tensor:
        if x.dtype == torch.bool:
            # ONNX has no order of truth values before opset 20.
            return run(x.to(torch.uint8), dim, keepdim).to(torch.bool)
        return packet.default(x, dim, keepdim) if x.ndim else x.clone()

    return run


def scatter_reduce(
    x: torch.Tensor, dim: int, index: torch.Tensor, src: torch.Tensor, reduce: str, include_self: bool = True
) -> torch.Tensor:
    """Return ``x`` with entries reduced into it; a mean, which ONNX does not have, as a sum and a count."""
    run = torch.ops.aten.scatter_reduce.two
    if reduce != "mean":
        return run(x, dim, index, src, reduce, include_self=include_self)
    total = run(x, dim, index, src, "sum", include_self=include_self)
    first = torch.ones_like(x) if include_self else torch.zeros_like(x)
    count = run(first, dim, index, torch.ones_like(src), "sum", include_self=True).clamp(min=1)
    return total / count if x.is_floating_point() else torch.div(total, count, rounding_mode="floor")


def build_form_table() -> dict[str, Callable[..., Any]]:
    """Return the forms by TorchScript operator without overload."""
    forms: dict[str, Callable[..., Any]] = {"div": aten_div, "squeeze": squeeze, "scatter_reduce": scatter_reduce}
    forms |= {
        "pow": power,
        "copy_": copy_into,
        "median": median,
        "sort": sort,
        "argsort": lambda x, *rest: sort(x, *rest)[1],
    }
    forms |= {name: _make_extremum(name) for name in ("amax", "amin")}
    forms |= {name: functools.partial(join, name) for name in ("cat", "stack")}
    forms |= {
        "linalg_det": det,
        "det": det,
        "_linalg_det": det_and_factors,
        "einsum": einsum,
        "searchsorted": searchsorted,
    }
    forms |= {name: functools.partial(run_in_dtype, getattr(torch, name)) for name in ("softmax", "log_softmax")}
    forms |= {"aminmax": aminmax, "pad": pad, "linalg_vector_norm": vector_norm, "copysign": copysign}
    forms |= {name: functools.partial(shift_bits, name) for name in ("bitwise_left_shift", "bitwise_right_shift")}
    forms |= {name: functools.partial(extremum_of_two, name) for name in ("fmax", "fmin")}
    forms |= {name: functools.partial(cumulate, name) for name in ("cummax", "cummin")}
    forms |= {"diagonal_scatter": diagonal_scatter, "linspace": linspace, "cholesky_inverse": cholesky_inverse}
    forms |= {"cumprod": cumprod, "cdist": cdist, "cholesky_solve": cholesky_solve}
    forms["bucketize"] = lambda x, bounds, out_int32=False, right=False: searchsorted(bounds, x, out_int32, right)
    forms |= {name: functools.partial(_decompose, name) for name in _BACKWARD}
    forms |= {name: functools.partial(_unroll, name) for name in ("gru", "lstm", "rnn_tanh", "rnn_relu")}
    return {f"aten::{name}": form for name, form in forms.items()}


# What gradients of activations are: torch.onnx has no form of most, and leaves some as they are.
_BACKWARD = (
    "silu_backward", "mish_backward", "tanh_backward", "sigmoid_backward", "softplus_backward", "log_sigmoid_backward",
    "elu_backward", "hardtanh_backward", "hardswish_backward", "hardsigmoid_backward", "leaky_relu_backward",
    "threshold_backward", "glu_backward",
)  # fmt: skip


def _unroll(name: str, x: torch.Tensor, *arguments: Any) -> Any:
    """Run a recurrent network step by step in float64, which onnxruntime (1.31) has not."""
    operator, first = getattr(torch.ops.aten, name), arguments[0]
    # Of a packed sequence the sizes come first, before the state.
    is_packed = isinstance(first, torch.Tensor) and not first.is_floating_point()
    run = operator.data if is_packed else operator.input
    return (decomposition_table[run] if x.dtype == torch.float64 else run)(x, *arguments)


def _decompose(name: str, *arguments: Any) -> torch.Tensor:
    """Run torch's own decomposition of an operator."""
    operator = getattr(torch.ops.aten, name).default
    return decomposition_table[operator](*arguments)

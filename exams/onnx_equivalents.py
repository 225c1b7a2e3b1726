"""What computes an operator of ONNX in torch: functions of tensors by the operator's name.

An operator that torch has with other semantics, or whose test asks for what torch does not have, is left out: a builder
raises ``LookupError`` for it. https://onnx.ai/onnx/operators/"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

Function = Callable[..., Any]


@dataclass(frozen=True)
class NodeCall:
    """A node: its operator, its attributes, and the tensors that it takes; a missing one is None."""

    operator: str
    attributes: Mapping[str, Any]
    tensors: Sequence[torch.Tensor | None]

    def read(self, name: str, default: Any = None) -> Any:
        """Return an attribute."""
        return self.attributes.get(name, default)

    def read_numbers(self, position: int, name: str = "") -> list[Any] | None:
        """Return the numbers of a tensor that torch takes as such, or of an attribute of older versions."""
        tensor = self.tensors[position] if len(self.tensors) > position else None
        return self.read(name) if tensor is None else tensor.reshape(-1).tolist()

    def refuse(self, *names: str) -> None:
        """Raise ``LookupError`` if one of these attributes is set: torch does not have it."""
        if present := [name for name in names if self.read(name) not in (None, 0, "", "NOTSET")]:
            raise LookupError(f"torch does not have {present[0]}")


# A function of the first tensors of a node, and how many those are.
Built = tuple[Function, int]
Builder = Callable[[NodeCall], Built]
BUILDERS: dict[str, Builder] = {}


def builds(*names: str) -> Callable[[Builder], Builder]:
    """Register a builder for operators."""

    def register(builder: Builder) -> Builder:
        BUILDERS.update(dict.fromkeys(names, builder))
        return builder

    return register


def _take_all(function: Function) -> Builder:
    return lambda call: (function, len(call.tensors))


def _fold(function: Function) -> Function:
    return lambda *tensors: functools.reduce(function, tensors)


_PLAIN: dict[str, Function] = {
    "Abs": torch.abs, "Acos": torch.acos, "Acosh": torch.acosh, "Asin": torch.asin, "Asinh": torch.asinh,
    "Atan": torch.atan, "Atanh": torch.atanh, "Ceil": torch.ceil, "Cos": torch.cos, "Cosh": torch.cosh,
    "Erf": torch.erf, "Exp": torch.exp, "Floor": torch.floor, "IsNaN": torch.isnan, "Log": torch.log,
    "Neg": torch.neg, "Not": torch.logical_not, "Reciprocal": torch.reciprocal, "Relu": torch.relu,
    "Round": torch.round, "Sigmoid": torch.sigmoid, "Sign": torch.sign, "Sin": torch.sin, "Sinh": torch.sinh,
    "Sqrt": torch.sqrt, "Tan": torch.tan, "Tanh": torch.tanh, "Softplus": functional.softplus,
    "Softsign": functional.softsign, "Mish": functional.mish, "HardSwish": functional.hardswish,
    "Identity": torch.clone, "BitwiseNot": torch.bitwise_not, "Add": torch.add, "Sub": torch.sub, "Mul": torch.mul,
    "And": torch.logical_and, "Or": torch.logical_or, "Xor": torch.logical_xor, "Equal": torch.eq,
    "Greater": torch.gt, "GreaterOrEqual": torch.ge, "Less": torch.lt, "LessOrEqual": torch.le,
    "BitwiseAnd": torch.bitwise_and, "BitwiseOr": torch.bitwise_or, "BitwiseXor": torch.bitwise_xor,
    "MatMul": torch.matmul, "Max": _fold(torch.maximum), "Min": _fold(torch.minimum), "Sum": _fold(operator.add),
    "Mean": lambda *tensors: sum(tensors) / len(tensors), "Where": torch.where, "Det": torch.linalg.det,
    "PRelu": lambda x, slope: torch.where(x < 0, slope * x, x),
}  # fmt: skip
for _name, _function in _PLAIN.items():
    builds(_name)(_take_all(_function))


@builds("Div")
def build_quotient(call: NodeCall) -> Built:
    """Build a division, of whole numbers towards zero."""
    is_whole = call.tensors[0] is not None and not call.tensors[0].is_floating_point()
    return functools.partial(torch.div, rounding_mode="trunc" if is_whole else None), 2


@builds("Mod")
def build_remainder(call: NodeCall) -> Built:
    """Build a remainder with the sign of the divisor, or of the dividend."""
    return (torch.fmod if call.read("fmod", 0) else torch.remainder), 2


@builds("Pow")
def build_power(call: NodeCall) -> Built:
    """Build a power, of the dtype of the base."""
    return lambda x, y: torch.pow(x, y).to(x.dtype), 2


@builds("BitShift")
def build_shift(call: NodeCall) -> Built:
    """Build a shift of bits."""
    return (torch.bitwise_left_shift if call.read("direction") == "LEFT" else torch.bitwise_right_shift), 2


@builds("ArgMax", "ArgMin")
def build_place(call: NodeCall) -> Built:
    """Build the place of the first extremum."""
    call.refuse("select_last_index")
    find = torch.argmax if call.operator == "ArgMax" else torch.argmin
    return functools.partial(find, dim=call.read("axis", 0), keepdim=bool(call.read("keepdims", 1))), 1


@builds("Celu", "Elu", "LeakyRelu", "HardSigmoid", "ThresholdedRelu", "Shrink", "Swish", "Gelu", "Selu")
def build_activation(call: NodeCall) -> Built:
    """Build an activation with its numbers."""
    alpha, beta = call.read("alpha"), call.read("beta", 0.5)
    lambd, bias = call.read("lambd", 0.5), call.read("bias", 0.0)
    functions: dict[str, Function] = {
        "Celu": lambda x: functional.celu(x, 1.0 if alpha is None else alpha),
        "Elu": lambda x: functional.elu(x, 1.0 if alpha is None else alpha),
        "LeakyRelu": lambda x: functional.leaky_relu(x, 0.01 if alpha is None else alpha),
        "HardSigmoid": lambda x: ((0.2 if alpha is None else alpha) * x + beta).clamp(0.0, 1.0),
        "ThresholdedRelu": lambda x: functional.threshold(x, 1.0 if alpha is None else alpha, 0.0),
        "Shrink": lambda x: torch.where(x < -lambd, x + bias, torch.where(x > lambd, x - bias, torch.zeros_like(x))),
        "Swish": lambda x: x * torch.sigmoid((1.0 if alpha is None else alpha) * x),
        "Gelu": lambda x: functional.gelu(x, approximate=call.read("approximate", "none")),
        "Selu": functional.selu,
    }
    if call.operator == "Selu" and (alpha is not None or call.read("gamma") is not None):
        raise LookupError("torch has the constants of the paper")
    return functions[call.operator], 1


@builds("Softmax", "LogSoftmax")
def build_softmax(call: NodeCall) -> Built:
    """Build a softmax along a dimension."""
    function = functional.softmax if call.operator == "Softmax" else functional.log_softmax
    return functools.partial(function, dim=call.read("axis", -1)), 1


@builds("Clip")
def build_clip(call: NodeCall) -> Built:
    """Build bounds, which are tensors."""
    bounds = [*call.tensors[1:], None, None][:2]
    if all(bound is not None for bound in bounds):
        return torch.clamp, 3
    numbers = [None if bound is None else bound.item() for bound in bounds]
    return lambda x: torch.clamp(x, *numbers) if numbers != [None, None] else x.clone(), 1


@builds("CumSum", "CumProd")
def build_cumulative(call: NodeCall) -> Built:
    """Build sums or products of the first numbers."""
    call.refuse("exclusive", "reverse")
    (axis,) = call.read_numbers(1) or [0]
    function = torch.cumsum if call.operator == "CumSum" else torch.cumprod
    return lambda x: function(x, axis, dtype=x.dtype), 1


@builds("Einsum")
def build_einsum(call: NodeCall) -> Built:
    """Build a sum by an equation."""
    return functools.partial(torch.einsum, call.read("equation")), len(call.tensors)


@builds("Concat", "Gather", "GatherElements", "ScatterElements")
def build_along(call: NodeCall) -> Built:
    """Build reads and writes along a dimension; an index below 0 counts from the end, which torch does not take."""
    axis, op = call.read("axis", 0), call.operator
    index = call.tensors[1] if op != "Concat" else None
    if index is not None and bool((index < 0).any()):
        raise LookupError("torch takes no index below 0")
    if op == "Concat":
        return lambda *tensors: torch.cat(tensors, axis), len(call.tensors)
    if op == "Gather":
        return lambda x, i: x.movedim(axis, 0)[i].movedim(tuple(range(i.ndim)), _list_places(axis, x.ndim, i.ndim)), 2
    if op == "GatherElements":
        return lambda x, i: torch.gather(x, axis, i), 2
    reduction = {"none": None, "add": "sum", "mul": "prod", "max": "amax", "min": "amin"}[
        call.read("reduction", "none")
    ]
    if reduction is None:
        return lambda x, i, y: torch.scatter(x, axis, i, y), 3
    return lambda x, i, y: torch.scatter_reduce(x, axis, i, y, reduction), 3


def _list_places(axis: int, ndim: int, count: int) -> tuple[int, ...]:
    return tuple(range(axis % ndim, axis % ndim + count))


@builds("Gemm")
def build_matrix_product(call: NodeCall) -> Built:
    """Build a product of matrices, added to another one."""
    alpha, beta = call.read("alpha", 1.0), call.read("beta", 1.0)

    def multiply(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None = None) -> torch.Tensor:
        a, b = (m.T if call.read(name, 0) else m for m, name in ((a, "transA"), (b, "transB")))
        product = a @ b if alpha == 1.0 else alpha * (a @ b)
        return product if c is None else product + (c if beta == 1.0 else beta * c)

    return multiply, len(call.tensors)


@builds("Flatten", "Reshape", "Expand", "Tile", "Transpose", "Squeeze", "Unsqueeze", "Slice", "Trilu")
def build_arrangement(call: NodeCall) -> Built:
    """Build another arrangement of the same numbers."""
    call.refuse("allowzero")
    numbers, axis = call.read_numbers(1), call.read("axis", 1)
    functions: dict[str, Callable[[], Function]] = {
        "Flatten": lambda: lambda x: x.reshape(math.prod(x.shape[:axis]), -1),
        "Reshape": lambda: lambda x: x.reshape([x.shape[i] if n == 0 else n for i, n in enumerate(numbers or [])]),
        "Expand": lambda: lambda x: x.expand(torch.broadcast_shapes(x.shape, tuple(numbers or []))).clone(),
        "Tile": lambda: lambda x: x.tile(tuple(numbers or [])),
        "Transpose": lambda: lambda x: x.permute(call.read("perm") or list(range(x.ndim))[::-1]),
        "Squeeze": lambda: lambda x: x.squeeze(tuple(call.read_numbers(1, "axes") or range(x.ndim))),
        "Unsqueeze": lambda: functools.partial(_unsqueeze, axes=call.read_numbers(1, "axes") or []),
        "Slice": lambda: _build_slice(call),
        "Trilu": lambda: functools.partial(
            torch.triu if call.read("upper", 1) else torch.tril, diagonal=(call.read_numbers(1) or [0])[0]
        ),
    }
    return functions[call.operator](), 1


def _unsqueeze(x: torch.Tensor, axes: Sequence[int]) -> torch.Tensor:
    for axis in sorted(a % (x.ndim + len(axes)) for a in axes):
        x = x.unsqueeze(axis)
    return x


def _build_slice(call: NodeCall) -> Function:
    starts, ends = call.read_numbers(1) or [], call.read_numbers(2) or []
    axes = (call.read_numbers(3) if len(call.tensors) > 3 else None) or list(range(len(starts)))
    steps = (call.read_numbers(4) if len(call.tensors) > 4 else None) or [1] * len(starts)
    if any(step < 0 for step in steps):
        raise LookupError("torch has no slices backwards")

    def cut(x: torch.Tensor) -> torch.Tensor:
        for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
            x = x.movedim(axis, 0)[start:end:step].movedim(0, axis)
        return x

    return cut


@builds("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd",
        "ReduceSum", "ReduceSumSquare")  # fmt: skip
def build_reduction(call: NodeCall) -> Built:
    """Build a reduction; without dimensions, of all or of none."""
    axes, keepdim = call.read_numbers(1, "axes"), bool(call.read("keepdims", 1))
    if not axes and call.read("noop_with_empty_axes", 0):
        return torch.clone, 1
    functions: dict[str, Function] = {
        "ReduceL1": lambda x, d: x.abs().sum(d, keepdim=keepdim),
        "ReduceL2": lambda x, d: torch.linalg.vector_norm(x, 2, d, keepdim=keepdim),
        "ReduceLogSum": lambda x, d: x.sum(d, keepdim=keepdim).log(),
        "ReduceLogSumExp": lambda x, d: torch.logsumexp(x, d, keepdim=keepdim),
        "ReduceMax": lambda x, d: torch.amax(x, d, keepdim=keepdim),
        "ReduceMean": lambda x, d: torch.mean(x, d, keepdim=keepdim),
        "ReduceMin": lambda x, d: torch.amin(x, d, keepdim=keepdim),
        "ReduceSum": lambda x, d: torch.sum(x, d, keepdim=keepdim),
        "ReduceSumSquare": lambda x, d: (x * x).sum(d, keepdim=keepdim),
        "ReduceProd": lambda x, d: functools.reduce(lambda y, a: y.prod(a, keepdim=True), d, x).reshape(
            x.sum(d, keepdim=keepdim).shape
        ),
    }
    function = functions[call.operator]
    return lambda x: function(x, [a % x.ndim for a in axes] if axes else list(range(x.ndim))), 1


@builds("GlobalAveragePool", "GlobalMaxPool", "AveragePool", "MaxPool")
def build_pool(call: NodeCall) -> Built:
    """Build means and extrema of windows."""
    op, x = call.operator, call.tensors[0]
    assert x is not None
    count = x.ndim - 2
    if op.startswith("Global"):
        dims = list(range(2, x.ndim))
        return (lambda x: x.mean(dims, True)) if op == "GlobalAveragePool" else (lambda x: x.amax(dims, True)), 1
    call.refuse("auto_pad", "storage_order")
    size, stride = call.read("kernel_shape"), call.read("strides") or [1] * count
    padding, dilation = _read_padding(call, count), call.read("dilations") or [1] * count
    has_ceiling = bool(call.read("ceil_mode", 0))
    if op == "MaxPool":
        pool = getattr(functional, f"max_pool{count}d")
        return lambda x: pool(x, size, stride, padding, dilation, has_ceiling), 1
    if dilation != [1] * count:
        raise LookupError("torch has no means of windows with gaps")
    average, counts = getattr(functional, f"avg_pool{count}d"), bool(call.read("count_include_pad", 0))
    return lambda x: average(x, size, stride, padding, has_ceiling, counts), 1


def _read_padding(call: NodeCall, count: int) -> list[int]:
    pads = call.read("pads") or [0] * (2 * count)
    if pads[:count] != pads[count:]:
        raise LookupError("torch has the same padding on both sides")
    return pads[:count]


@builds("Conv", "ConvTranspose")
def build_convolution(call: NodeCall) -> Built:
    """Build a convolution."""
    call.refuse("auto_pad", "output_shape")
    assert call.tensors[0] is not None
    count = call.tensors[0].ndim - 2
    ones = [1] * count
    options: dict[str, Any] = {"stride": call.read("strides") or ones, "dilation": call.read("dilations") or ones}
    options |= {"padding": _read_padding(call, count), "groups": call.read("group", 1)}
    if call.operator == "Conv":
        return functools.partial(getattr(functional, f"conv{count}d"), **options), len(call.tensors)
    options["output_padding"] = call.read("output_padding") or [0] * count
    return functools.partial(getattr(functional, f"conv_transpose{count}d"), **options), len(call.tensors)


@builds("BatchNormalization", "InstanceNormalization", "LayerNormalization", "RMSNormalization", "GroupNormalization",
        "LRN", "LpNormalization")  # fmt: skip
def build_normalisation(call: NodeCall) -> Built:
    """Build a normalisation."""
    call.refuse("training_mode")
    epsilon, op, axis = call.read("epsilon", 1e-5), call.operator, call.read("axis", -1)
    functions: dict[str, Function] = {
        "BatchNormalization": lambda x, w, b, m, v: functional.batch_norm(x, m, v, w, b, False, 0.1, epsilon),
        "InstanceNormalization": lambda x, w, b: functional.instance_norm(x, weight=w, bias=b, eps=epsilon),
        "LayerNormalization": lambda x, w, b=None: functional.layer_norm(x, x.shape[axis:], w, b, epsilon),
        "RMSNormalization": lambda x, w: functional.rms_norm(x, x.shape[axis:], w, epsilon),
        "GroupNormalization": lambda x, w, b: functional.group_norm(x, call.read("num_groups"), w, b, epsilon),
        "LRN": lambda x: functional.local_response_norm(
            x, call.read("size"), call.read("alpha", 1e-4), call.read("beta", 0.75), call.read("bias", 1.0)
        ),
        "LpNormalization": functools.partial(functional.normalize, p=call.read("p", 2), dim=axis),
    }
    return functions[op], len(call.tensors)


@builds("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")
def build_loss(call: NodeCall) -> Built:
    """Build a loss by classes."""
    is_log = call.operator == "NegativeLogLikelihoodLoss"
    function = functional.nll_loss if is_log else functional.cross_entropy
    options = {"reduction": call.read("reduction", "mean"), "ignore_index": call.read("ignore_index", -100)}
    return lambda x, y, w=None: function(x, y.to(torch.int64), w, **options), len(call.tensors)


@builds("GridSample")
def build_grid_sample(call: NodeCall) -> Built:
    """Build numbers between those of a grid."""
    modes = {"linear": "bilinear", "cubic": "bicubic"}
    mode = call.read("mode", "linear")
    options: dict[str, Any] = {"mode": modes.get(mode, mode), "padding_mode": call.read("padding_mode", "zeros")}
    return functools.partial(functional.grid_sample, **options, align_corners=bool(call.read("align_corners", 0))), 2

"""Elementary functions in float64, of those that onnxruntime has in float64 or whose digits torch.onnx keeps.

onnxruntime (1.31) has kernels of Tan, Asin, Acos, Atan, Sinh, Cosh, Asinh, Acosh, Atanh and Erf in float32 only;
torch.onnx writes ``log1p(x)`` as ``log(1 + x)``, and constants of its own formulas (``log10``) as float32. Most keep
torch's own operator for other dtypes. The errors are some ULPs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

Function = Callable[..., torch.Tensor]


def log1p(x: torch.Tensor) -> torch.Tensor:
    """Return log(1 + x).

    Goldberg, What Every Computer Scientist Should Know About Floating-Point Arithmetic, 1991, theorem 4."""
    u = 1.0 + x
    plain = (u == 1.0) | torch.isinf(u) | (u == 0.0)
    ratio = torch.log(u) * (x / torch.where(plain, 1.0, u - 1.0))
    return torch.where(plain, torch.where(u == 1.0, x, torch.log(u)), ratio)


def log10(x: torch.Tensor) -> torch.Tensor:
    """Return the decimal logarithm."""
    return torch.log(x) / math.log(10.0)


def log2(x: torch.Tensor) -> torch.Tensor:
    """Return the binary logarithm."""
    return torch.log(x) / math.log(2.0)


def deg2rad(x: torch.Tensor) -> torch.Tensor:
    """Return degrees in radians."""
    return x * (math.pi / 180.0)


def rad2deg(x: torch.Tensor) -> torch.Tensor:
    """Return radians in degrees."""
    return x * (180.0 / math.pi)


def logaddexp(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return log(exp(x) + exp(y)) by the larger one, as neither exponential may be a number.

    ``logaddexp_kernel`` in aten/src/ATen/native/cpu/BinaryOpsKernel.cpp."""
    larger = torch.maximum(x, y)
    # The difference of two infinities is none.
    gap = torch.where(x == y, 0.0, -(x - y).abs())
    return larger + log1p(torch.exp(gap))


def hypot(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return sqrt(x^2 + y^2) by the larger one, whose square alone may be no number.

    An infinite side has an infinite length, whatever the other one is: C99, F.9.4.3."""
    dtype = torch.result_type(x, y)
    x, y = x.to(dtype).abs(), y.to(dtype).abs()
    larger, smaller = torch.maximum(x, y), torch.minimum(x, y)
    ratio = torch.where(larger == 0.0, 0.0, smaller / larger)
    length = larger * torch.sqrt(1.0 + ratio * ratio)
    return torch.where(torch.isinf(x) | torch.isinf(y), math.inf, length)


def logaddexp2(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the binary logarithm of 2^x + 2^y the same way: ``logaddexp2_kernel`` in the same file."""
    larger = torch.maximum(x, y)
    gap = torch.where(x == y, 0.0, -(x - y).abs())
    return larger + log1p(torch.exp(gap * math.log(2.0))) / math.log(2.0)


def expm1(x: torch.Tensor) -> torch.Tensor:
    """Return exp(x) - 1: Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., alg. 1.14.1 (W. Kahan)."""
    u = torch.exp(x)
    plain = (u == 1.0) | (u == 0.0) | torch.isinf(u)
    kahan = (u - 1.0) * (x / torch.where(plain, 1.0, torch.log(u)))
    # Where u is no normal number any more, its logarithm has lost digits.
    return torch.where(x < -40.0, -1.0, torch.where(plain, torch.where(u == 1.0, x, u - 1.0), kahan))


def sigmoid(x: torch.Tensor) -> torch.Tensor:
    """Return the logistic function."""
    return 1.0 / (1.0 + torch.exp(-x))


def silu(x: torch.Tensor) -> torch.Tensor:
    """Return x sigmoid(x)."""
    return x / (1.0 + torch.exp(-x))


def log_sigmoid(x: torch.Tensor) -> torch.Tensor:
    """Return the logarithm of the logistic function."""
    return torch.clamp(x, max=0.0) - log1p(torch.exp(-x.abs()))


def softplus(x: torch.Tensor, beta: float = 1.0, threshold: float = 20.0) -> torch.Tensor:
    """Return log(1 + exp(beta x)) / beta, and x beyond the threshold."""
    scaled = x * beta
    small = torch.clamp(scaled, max=threshold)
    return torch.where(scaled > threshold, x, log1p(torch.exp(small)) / beta)


def mish(x: torch.Tensor) -> torch.Tensor:
    """Return x tanh(softplus(x))."""
    return x * torch.tanh(softplus(x))


def elu(x: torch.Tensor, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> torch.Tensor:
    """Return the exponential linear unit."""
    return torch.where(x > 0.0, x * scale, alpha * scale * expm1(torch.clamp(x, max=0.0) * input_scale))


def celu(x: torch.Tensor, alpha: float = 1.0) -> torch.Tensor:
    """Return the continuously differentiable exponential linear unit."""
    return torch.where(x > 0.0, x, alpha * expm1(torch.clamp(x, max=0.0) / alpha))


def selu(x: torch.Tensor) -> torch.Tensor:
    """Return the scaled ELU of Klambauer et al., Self-Normalizing Neural Networks, 2017, with torch's constants."""
    return elu(x, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946)


def sinh(x: torch.Tensor) -> torch.Tensor:
    """Return the hyperbolic sine."""
    e = expm1(x.abs())
    half = torch.exp(x.abs() / 2)
    # Where the exponential overflows, half of it times itself may not.
    large = half * 0.5 * half
    return torch.sign(x) * torch.where(x.abs() > 40.0, large, (e + e / (e + 1.0)) / 2)


def cosh(x: torch.Tensor) -> torch.Tensor:
    """Return the hyperbolic cosine."""
    half = torch.exp(x.abs() / 2)
    return half * 0.5 * half + 0.5 / half / half


def tan(x: torch.Tensor) -> torch.Tensor:
    """Return the tangent."""
    return torch.sin(x) / torch.cos(x)


def asinh(x: torch.Tensor) -> torch.Tensor:
    """Return the inverse hyperbolic sine."""
    a = x.abs()
    # Beyond this x^2 + 1 is x^2, and may overflow.
    large = torch.log(a) + math.log(2.0)
    small = torch.where(a > 1e8, 0.0, a)
    near = log1p(small + small * small / (1.0 + torch.sqrt(small * small + 1.0)))
    return torch.sign(x) * torch.where(a > 1e8, large, near)


def acosh(x: torch.Tensor) -> torch.Tensor:
    """Return the inverse hyperbolic cosine."""
    t = torch.where(x > 1e8, 0.0, x - 1.0)
    return torch.where(x > 1e8, torch.log(x) + math.log(2.0), log1p(t + torch.sqrt(2.0 * t + t * t)))


def atanh(x: torch.Tensor) -> torch.Tensor:
    """Return the inverse hyperbolic tangent."""
    a = x.abs()
    return torch.sign(x) * 0.5 * log1p(2.0 * a / (1.0 - a))


def atan2(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return the angle in float32, corrected by the remaining rotation, which its sine and cosine give."""
    size = torch.maximum(y.abs(), x.abs())
    none = size == 0.0
    scale = torch.where(none | torch.isinf(size), 1.0, size)
    # Infinities are directions, too; beside them other numbers leave their sign.
    ends = [torch.where(torch.isinf(v), torch.sign(v), v * 0.0) for v in (y, x)]
    y_, x_ = (torch.where(torch.isinf(size), end, v / scale) for v, end in zip((y, x), ends, strict=True))
    ratio = y_.abs() / torch.where(none, 1.0, x_.abs())
    first = torch.atan(ratio.to(torch.float32)).to(y_.dtype)
    first = torch.where(_is_negative(x), math.pi - first, first)
    first = torch.where(_is_negative(y), -first, first)
    s, c = torch.sin(first), torch.cos(first)
    off = (y_ * c - x_ * s) / torch.where(none, 1.0, x_ * c + y_ * s)
    return torch.where(none, first, first + off - off * off * off / 3.0)


def _is_negative(x: torch.Tensor) -> torch.Tensor:
    """Return whether the sign is negative, which it is for minus zero, too."""
    return (x < 0.0) | ((x == 0.0) & (1.0 / x < 0.0))


def atan(x: torch.Tensor) -> torch.Tensor:
    """Return the inverse tangent."""
    return atan2(x, torch.ones_like(x))


def asin(x: torch.Tensor) -> torch.Tensor:
    """Return the inverse sine."""
    return atan2(x, torch.sqrt((1.0 - x) * (1.0 + x)))


def acos(x: torch.Tensor) -> torch.Tensor:
    """Return the inverse cosine."""
    return atan2(torch.sqrt((1.0 - x) * (1.0 + x)), x)


# Terms of erf's series: at 6, where erf is 1 in float64, the next one is some 1e-17 of the sum.
_TERMS = 130


def erf(x: torch.Tensor) -> torch.Tensor:
    """Return ``2 / sqrt(pi) exp(-x^2) sum 2^n x^(2n+1) / (2n+1)!!``, whose terms are all positive (Abramowitz and
    Stegun, Handbook of Mathematical Functions, 7.1.6)."""
    a = torch.clamp(x.abs(), max=6.0)
    t = 2.0 * a * a
    total = torch.ones_like(a)
    for n in reversed(range(1, _TERMS)):
        total = 1.0 + total * t / (2 * n + 1)
    value = 2.0 / math.sqrt(math.pi) * torch.exp(-a * a) * a * total
    return torch.sign(x) * torch.where(x.abs() >= 6.0, 1.0, value) + torch.where(torch.isnan(x), x, 0.0)


def gelu(x: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    """Return the GELU of Hendrycks and Gimpel, Gaussian Error Linear Units, 2016, sec. 2."""
    if approximate == "tanh":
        return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)))
    return 0.5 * x * (1.0 + erf(x * math.sqrt(0.5)))


def _gelu_backward(grad: torch.Tensor, x: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    if approximate == "tanh" or x.dtype != torch.float64:
        return torch.ops.aten.gelu_backward.default(grad, x, approximate=approximate)
    density = math.sqrt(0.5 / math.pi) * torch.exp(-0.5 * x * x)
    return grad * (0.5 * (1.0 + erf(x * math.sqrt(0.5))) + x * density)


def _gelu(x: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    return gelu(x, approximate) if x.dtype == torch.float64 else torch.ops.aten.gelu.default(x, approximate=approximate)


def _restrict_to_float64(function: Function, name: str) -> Function:
    packet: Any = getattr(torch.ops.aten, name)

    def run(x: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        return function(x, *rest) if x.dtype == torch.float64 else packet.default(x, *rest)

    return run


_FUNCTIONS = (
    log1p, log10, log2, deg2rad, rad2deg, expm1, sinh, cosh, tan, asinh, acosh, atanh, atan2, atan, asin, acos, erf,
)  # fmt: skip


def build_function_table() -> dict[str, Callable[..., Any]]:
    """Return the functions by TorchScript operator without overload."""
    table: dict[str, Callable[..., Any]] = {}
    table |= {f"aten::{f.__name__}": _restrict_to_float64(f, f.__name__) for f in _FUNCTIONS}
    others = {"sigmoid": sigmoid, "silu": silu, "log_sigmoid": log_sigmoid, "softplus": softplus, "mish": mish}
    table |= {f"aten::{name}": _restrict_to_float64(function, name) for name, function in others.items()}
    # As torch.onnx writes them, log(sigmoid(x)) is minus infinity below -88 in float32, log1p, expm1 and exponential
    # linear units are 0 for small x, and logaddexp is infinite for large ones.
    table |= {"aten::elu": elu, "aten::celu": celu, "aten::selu": selu}
    table |= {"aten::log_sigmoid": log_sigmoid, "aten::log1p": log1p, "aten::expm1": expm1}
    table |= {"aten::logaddexp": logaddexp, "aten::logaddexp2": logaddexp2, "aten::hypot": hypot}
    table["aten::special_erf"] = table["aten::erf"]
    table["aten::gelu"], table["aten::gelu_backward"] = _gelu, _gelu_backward
    return table

"""Models whose ONNX form is easily wrong, as users write them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

import torchferry


class Digits(nn.Module):
    """Numbers that torch.onnx writes as float32, and that its optimiser takes for zero."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([[0.3, 0.1], [0.7, -0.2], [0.11, 0.13]], dtype=torch.float64))

    def forward(self, x):
        direction = x / (x.square().sum(-1, keepdim=True) + 1e-12).sqrt()
        scaled = (x @ self.weight) / 3 * 1.1
        slopes = F.leaky_relu(x, 0.1) + F.elu(x, 0.3) + x.abs() ** 0.3 + torch.addcmul(x, x, x, value=0.1)
        return {"direction": direction, "scaled": scaled, "slopes": slopes, "hidden": F.silu(scaled.tanh())}


def digits():
    x = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(4, 3)
    return Digits(), {"x": x}


class Small(nn.Module):
    """Terms that onnxruntime takes for none, and whole numbers beyond float32."""

    def forward(self, x, count):
        return {
            "held": 1.0 / (x.abs() + 1e-300),
            "nearly": (x * (1 + 1e-9)).sqrt() * ((x + 1.0) / (1 - 1e-9)),
            "third": torch.div(count, 3, rounding_mode="trunc"),
            "activated": F.elu(x - 40.0),
        }


def small():
    x = torch.tensor([0.0, 1.0, 2.0, 3.0], dtype=torch.float64)
    return Small(), {"x": x, "count": torch.tensor([16777217, -100000001, 123456789012345, 7])}


class Branches(nn.Module):
    """A branch on the size of the batch, which tracing would keep one side of."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.size(0) > 50000:
            return x * 3.0
        return x * 2.0


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torchferry.mark(Branches(), jit="script")

    def forward(self, x):
        return {"y": self.inner(x) + 1.0}


def branches():
    return Outer(), {"x": torch.linspace(-1, 1, 6, dtype=torch.float64)}


class Rounded(nn.Module):
    """Rounding to even, division that rounds down, an activation with an approximation of its own."""

    def forward(self, halves, count, x):
        return {
            "rounded": torch.round(halves),
            "quotient": torch.div(count, 3, rounding_mode="floor"),
            "gate": F.gelu(x),
            "difference": halves - x,
        }


def rounded():
    halves = torch.arange(-4, 5, dtype=torch.float32) / 2
    return Rounded(), {"halves": halves, "count": torch.arange(-4, 5), "x": torch.linspace(-2, 2, 9)}


class Functions(nn.Module):
    def forward(self, x):
        near = 0.9 * torch.tanh(x)
        result = [torch.tan(x), torch.asin(near), torch.acos(near), torch.atan(x), torch.sinh(near), torch.cosh(near)]
        result += [torch.asinh(x), torch.acosh(1 + x.abs()), torch.atanh(near), torch.erf(x), torch.log1p(x.abs())]
        result += [torch.expm1(near), torch.atan2(x, near), F.gelu(x)]
        return {"values": torch.stack(result, -1), "bin": torch.bucketize(x, torch.tensor([-0.5, 0.0, 0.5]).double())}


def functions():
    return Functions(), {"x": torch.linspace(-2, 2, 9, dtype=torch.float64)}


class Solves(nn.Module):
    def forward(self, a, b):
        matrix = a + 4 * torch.eye(3, dtype=a.dtype)
        return {
            "x": torch.linalg.solve(matrix, b),
            "det": torch.linalg.det(matrix),
            "inverse": torch.linalg.inv(matrix),
        }


def solves():
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(5, 3, 3, dtype=torch.float64, generator=generator)
    return Solves(), {"a": a, "b": torch.randn(5, 3, dtype=torch.float64, generator=generator)}


class Whole(nn.Module):
    def forward(self, x, edges):
        weights = torch.softmax(x[edges[:, 0]] @ x[edges[:, 1]].mT, -1)
        return {"energy": (weights * 0.1).sum() / x.shape[0]}


class Eigen(nn.Module):
    def forward(self, a):
        return {"values": torch.linalg.eigvalsh(a @ a.mT)}


def eigen():
    return Eigen(), {"a": torch.randn(3, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))}


class Complex(nn.Module):
    def forward(self, x):
        return {"y": torch.fft.fft(x.to(torch.complex128))}


def spectrum():
    return Complex(), {"x": torch.linspace(-2, 2, 8, dtype=torch.float64).expand(3, 8).clone()}

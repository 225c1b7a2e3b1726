"""Models whose derivatives are asked for."""

from __future__ import annotations

import torch
from torch import nn

from torchferry import Signature, TensorSpec

F = torch.float64


class Mixed(nn.Module):
    """Vectors and scalars, an integer, parameters, an output without a derivative, and blocks that are zero."""

    signature = Signature.of(
        {"x": (3,), "y": (), "k": TensorSpec("k", (), "int64")},
        {"h": (4,), "e": (), "c": (), "n": TensorSpec("n", (), "int64")},
    )

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.l = nn.Linear(3, 4, dtype=F)
        self.E = nn.Parameter(torch.tensor(2.0, dtype=F))
        self.seq = nn.Sequential(nn.Linear(4, 2, dtype=F), nn.Tanh())

    def forward(self, x, y, k):
        h = torch.tanh(self.l(x)) * self.E
        return h, torch.where(y > 0, (self.seq(h) ** 2).sum(-1) * y, y**3) + k, 3 * y, 2 * k


class Fan(nn.Module):
    """Many inputs and one output."""

    signature = Signature.of({"x": (12,)}, {"e": ()})

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.seq = nn.Sequential(nn.Linear(12, 8, dtype=F), nn.Tanh(), nn.Linear(8, 1, dtype=F))

    def forward(self, x):
        return self.seq(x)[:, 0]


class Whole(nn.Module):
    """No batch: the solution of a linear system."""

    signature = Signature.of({"x": (4,), "A": (4, 4)}, {"y": (4,)}, batch_ndim=0)

    def forward(self, x, A):
        return torch.linalg.solve(A + 5 * torch.eye(4, dtype=A.dtype, device=A.device), x)


class Constant(nn.Module):
    """A linear map, whose block does not depend on the input, and an output that depends on nothing."""

    signature = Signature.of({"x": (2,)}, {"y": (2,), "one": ()})

    def __init__(self):
        super().__init__()
        self.register_buffer("A", torch.tensor([[2.0, 1.0], [0.0, 3.0]], dtype=F))

    def forward(self, x):
        return x @ self.A.T, torch.ones((), dtype=F, device=x.device)


class Kinked(nn.Module):
    """Not differentiable at zero."""

    signature = Signature.of({"x": (2,)}, {"y": ()})

    def __init__(self):
        super().__init__()
        self.example_inputs = {"x": torch.tensor([[0.0, 1.0], [2.0, -1.0], [-0.5, 0.25]], dtype=F)}

    def forward(self, x):
        return x.abs().sum(-1) + (x**2).prod(-1)


class HalfDetached(nn.Module):
    """A parameter that reaches the output by two ways, one of which autograd does not see."""

    signature = Signature.of({"x": (2,)}, {"y": (2,)})

    def __init__(self):
        super().__init__()
        self.E = nn.Parameter(torch.tensor(2.0, dtype=F))

    def forward(self, x):
        return self.E * x + self.E.detach() * x**2


class _Straight(torch.autograd.Function):
    """A backward that is not the derivative of its forward, on purpose."""

    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, gradient):  # pyright: ignore[reportIncompatibleMethodOverride]
        return gradient


class Straight(nn.Module):
    signature = Signature.of({"x": (3,)}, {"y": (3,)})

    def forward(self, x):
        return _Straight.apply(3 * x) * x


class _Forgetful(torch.autograd.Function):
    """Its backward lacks a term of the product rule."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sin(x)

    @staticmethod
    def backward(ctx, gradient):  # pyright: ignore[reportIncompatibleMethodOverride]
        (x,) = ctx.saved_tensors
        return gradient * torch.sin(x)


class Forgetful(nn.Module):
    signature = Signature.of({"x": (3,)}, {"y": (3,)})

    def forward(self, x):
        return _Forgetful.apply(x)


class _Cube(torch.autograd.Function):
    """Its own backward, which is right."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, gradient):  # pyright: ignore[reportIncompatibleMethodOverride]
        (x,) = ctx.saved_tensors
        return gradient * 3 * x * x


class Cube(nn.Module):
    signature = Signature.of({"x": (3,)}, {"y": (3,)})

    def forward(self, x):
        return _Cube.apply(x)


class Searched(nn.Module):
    """``torch.bucketize`` is an integer; what is made of it has no derivative."""

    signature = Signature.of({"x": ()}, {"y": ()})
    edges: torch.Tensor

    def __init__(self):
        super().__init__()
        self.register_buffer("edges", torch.linspace(-1, 1, 5, dtype=F))

    def forward(self, x):
        return torch.bucketize(x, self.edges).to(x.dtype)


class Lookup(nn.Module):
    """An operator that torch has no derivative for."""

    signature = Signature.of({"x": ()}, {"y": ()})

    def forward(self, x):
        return torch.special.gammainc(x.abs() + 1, x.abs())


class Single(nn.Module):
    """float32."""

    signature = Signature.of({"x": (3,)}, {"y": (3,)}, dtype="float32")

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.l = nn.Linear(3, 3)

    def forward(self, x):
        return torch.tanh(self.l(x))


class Oscillator(nn.Module):
    """A residual for Newton's method."""

    signature = Signature.of({"x": (2,), "p": ()}, {"r": (2,)})

    def forward(self, x, p):
        a, b = x.unbind(-1)
        return torch.stack([a**3 - b + p, torch.exp(0.3 * b) + a - 2.0], -1)

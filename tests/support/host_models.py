"""Models for hosts: laws without symmetry, with all that a host provides, with a limit; one of matrices."""

from __future__ import annotations

import torch
from torch import nn

import torchferry

F = torch.float64


def _draw(count: int, scale: float) -> torch.Tensor:
    return scale * (2 * torch.rand(count, 6, generator=torch.Generator().manual_seed(0), dtype=F) - 1)


class Anisotropic(nn.Module):
    """Elasticity whose 21 constants all differ."""

    signature = torchferry.Signature.of({"strain": (6,)}, {"stress": (6,)})

    def __init__(self) -> None:
        super().__init__()
        roots = torch.eye(6, dtype=F) * 400 + _draw(6, 60.0)
        self.stiffness = nn.Parameter(roots @ roots.T)
        self.__dict__["example_inputs"] = {"strain": _draw(16, 1e-3)}

    def forward(self, strain: torch.Tensor) -> torch.Tensor:
        return strain @ self.stiffness


class _Viscoelastic(nn.Module):
    """Parameters and examples of a law with a tensor as state."""

    def __init__(self) -> None:
        super().__init__()
        self.expansion = nn.Parameter(torch.tensor(1e-5, dtype=F))
        self.modulus = nn.Parameter(torch.tensor(1.5e3, dtype=F))
        self.__dict__["example_inputs"] = {
            "strain": _draw(16, 1e-3),
            "flow~1": _draw(16, 1e-4),
            "T": torch.linspace(300, 400, 16, dtype=F),
            "t": torch.linspace(1.0, 2.0, 16, dtype=F),
            "t~1": torch.linspace(0.5, 1.0, 16, dtype=F),
        }


class Warm(_Viscoelastic):
    """The law of what a host without a start temperature and fields provides."""

    signature = torchferry.Signature.of(
        {"strain": (6,), "flow~1": (6,), "T": (), "t": (), "t~1": ()}, {"stress": (6,), "flow": (6,)}
    )

    def forward(self, strain, flow, temperature, time, old_time):
        flow = flow + (time - old_time)[:, None] * (strain - flow) * 0.5
        return self.modulus * (strain - flow - (self.expansion * temperature)[:, None]), flow


class Rich(_Viscoelastic):
    """The law with all that a host may provide: the start's temperature, a field, and its energy."""

    signature = torchferry.Signature.of(
        {
            "strain": (6,),
            "flow~1": (6,),
            "T": (),
            "T~1": (),
            "wear": (),
            "wear~1": (),
            "t": (),
            "t~1": (),
        },
        {"stress": (6,), "flow": (6,), "energy": ()},
    )

    def __init__(self) -> None:
        super().__init__()
        self.__dict__["example_inputs"] |= {
            "T~1": torch.linspace(290, 350, 16, dtype=F),
            "wear": torch.linspace(0.1, 0.2, 16, dtype=F),
            "wear~1": torch.linspace(0.05, 0.1, 16, dtype=F),
        }

    def forward(self, strain, flow, temperature, old_temperature, wear, old_wear, time, old_time):
        warm = self.expansion * (temperature + 0.1 * old_temperature)
        change = (time - old_time)[:, None] * (strain - flow) * 0.5
        flow = flow + change
        elastic = strain - flow - warm[:, None]
        softened = (self.modulus * (1 - 0.5 * wear - 0.1 * old_wear))[:, None]
        return softened * elastic, flow, 0.5 * (softened * elastic.square()).sum(-1)


class Limited(nn.Module):
    """Elasticity that gives no number where a step is too large."""

    signature = torchferry.Signature.of({"strain": (6,), "strain~1": (6,)}, {"stress": (6,)})
    # The square of the largest step.
    LIMIT = 9e-6
    identity: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.modulus = nn.Parameter(torch.tensor(2e5, dtype=F))
        self.register_buffer("identity", torch.tensor([1.0, 1.0, 1.0, 0.0, 0.0, 0.0], dtype=F))
        strain = _draw(16, 1e-3)
        self.__dict__["example_inputs"] = {"strain": strain, "strain~1": strain * 0.5}

    def forward(self, strain: torch.Tensor, old_strain: torch.Tensor) -> torch.Tensor:
        left = self.LIMIT - (strain - old_strain).square().sum(-1, keepdim=True)
        volume = strain @ self.identity[:, None]
        return self.modulus * (strain + volume * self.identity) + 1e-30 * left.sqrt()


class Matrices(nn.Module):
    """A matrix, a vector, a number and a tensor of three dimensions; the second output sees the number alone."""

    signature = torchferry.Signature.of(
        {"matrix": (2, 3), "vector": (3,), "number": (), "cube": (2, 2, 2)},
        {"product": (3, 2), "square": (), "sum": (2, 2)},
    )

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0, 2.0, 3.0], dtype=F))
        shapes = {"matrix": (8, 2, 3), "vector": (8, 3), "number": (8,), "cube": (8, 2, 2, 2)}
        draw = torch.Generator().manual_seed(0)
        self.__dict__["example_inputs"] = {n: torch.rand(s, generator=draw, dtype=F) for n, s in shapes.items()}

    def forward(self, matrix, vector, number, cube):
        product = (matrix * (vector * self.weight)[:, None, :]).transpose(1, 2) * number[:, None, None]
        return product, number * number, cube.sum(3) * matrix[:, :, :2]


class Hiding(nn.Module):
    """A law that makes a number of a strain that is none."""

    signature = torchferry.Signature.of({"strain": (6,)}, {"stress": (6,)})

    def __init__(self) -> None:
        super().__init__()
        self.modulus = nn.Parameter(torch.tensor(2e5, dtype=F))
        self.__dict__["example_inputs"] = {"strain": _draw(16, 1e-3)}

    def forward(self, strain: torch.Tensor) -> torch.Tensor:
        return self.modulus * torch.where(strain > -1.0, strain, torch.zeros_like(strain)).tanh()


class Shared(nn.Module):
    """A parameter and an input of one name: a derivative is by the input."""

    signature = torchferry.Signature.of({"k": ()}, {"y": ()})

    def __init__(self) -> None:
        super().__init__()
        self.k = nn.Parameter(torch.tensor(3.0, dtype=F))
        self.__dict__["example_inputs"] = {"k": torch.linspace(0.1, 1.0, 8, dtype=F)}

    def forward(self, k: torch.Tensor) -> torch.Tensor:
        return self.k * k


HOSTILE = 'y"""; import os; os._exit(77); """\\x </a><script>%s{{7*7}}'


class Named(nn.Module):
    """Names that mean something elsewhere: of a parameter, of FMI, of Python, and a text that would end another."""

    signature = torchferry.Signature.of({"k": (), "time": (), "lambda": (), "torch": ()}, {HOSTILE: (), "double": ()})

    def __init__(self) -> None:
        super().__init__()
        self.k = nn.Parameter(torch.tensor(3.0, dtype=F))
        names = ("k", "time", "lambda", "torch")
        self.__dict__["example_inputs"] = {n: torch.linspace(0.1, 1.0, 8, dtype=F) * i for i, n in enumerate(names, 1)}

    def forward(self, k, time, factor, other):
        return self.k * k + time, factor * other

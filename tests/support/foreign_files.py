"""Modules that others might have saved as TorchScript, for ``torchferry adopt``."""

from typing import NamedTuple

import torch
from torch import nn

F = torch.float64


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 8), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.first(x)))


class Pair(NamedTuple):
    total: torch.Tensor
    scaled: torch.Tensor


def scale(x: torch.Tensor, times: int) -> torch.Tensor:
    for _ in range(times):
        x = x.sin()
    return x


class Structured(nn.Module):
    """Dicts, an optional tensor and a number go in, a named tuple comes out; attributes are numbers and texts."""

    mean: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.times, self.names, self.factor = 3, ["a", "b"], 0.5
        self.layers = nn.ModuleList([nn.Linear(3, 3) for _ in range(2)])
        self.shift = torch.ones(3, dtype=F)
        self.register_buffer("mean", torch.full((3,), 0.25, dtype=F))

    def forward(self, data: dict[str, torch.Tensor], extra: torch.Tensor | None = None, times: float = 2.0) -> Pair:
        y = scale(data["a"] - self.mean, self.times) * self.factor + self.shift
        for layer in self.layers:
            y = layer(y)
        if extra is not None:
            y = y + extra
        return Pair(y + len(self.names), y * times + data["b"])


class Halving(nn.Module):
    """A loop whose number of steps is in the data."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, count = x.abs(), 0
        while bool((y > 0.1).any()) and count < 50:
            y = torch.where(y > 0.1, y * 0.5, y)
            count += 1
        return y


class Potential(nn.Module):
    """An energy and its forces, by a gradient that the file takes itself."""

    def __init__(self) -> None:
        super().__init__()
        self.k = nn.Parameter(torch.tensor(2.0, dtype=F))

    def forward(self, positions: torch.Tensor) -> dict[str, torch.Tensor]:
        r = positions.requires_grad_(True)
        energy = self.k * (r * r).sum(-1) + (r**4).sum(-1)
        gradient = torch.autograd.grad([energy.sum()], [r])[0]
        assert gradient is not None
        return {"energy": energy.detach(), "forces": -gradient}


class Sometimes(nn.Module):
    """An output is None for one value of its input."""

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor | None]:
        square: torch.Tensor | None = None
        if bool(x.sum() != 12345.0):
            square = x * x
        return {"double": x * 2, "square": square}


class PartialPotential(nn.Module):
    def forward(self, positions: torch.Tensor) -> dict[str, torch.Tensor | None]:
        r = positions.requires_grad_(True)
        gradient = torch.autograd.grad([(r * r).sum()], [r])[0]
        assert gradient is not None
        stress: torch.Tensor | None = None
        return {"forces": -gradient, "stress": stress}


class BranchingPotential(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        r = x.requires_grad_(True)
        energy = (r * r).sum(-1)
        if bool(energy.sum() > 5):
            energy = energy * 2
        gradient = torch.autograd.grad([energy.sum()], [r])[0]
        assert gradient is not None
        return gradient


class SizedPotential(nn.Module):
    """The steps of its loop are as many as elements: a trace of the backward pass has those that it saw."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        r = x.requires_grad_(True)
        energy = (r * r).sum(-1)
        for i in range(x.shape[0]):
            energy = energy + r[i, 0] * 0.1
        gradient = torch.autograd.grad([energy.sum()], [r])[0]
        assert gradient is not None
        return gradient


class MeanPotential(nn.Module):
    """Its code reads the number of numbers."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        r = x.requires_grad_(True)
        energy = (r * r).sum() / x.numel()
        gradient = torch.autograd.grad([energy], [r])[0]
        assert gradient is not None
        return gradient


class Counter(nn.Module):
    count: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(1, dtype=F))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count = self.count + 1
        return x * self.count


class BufferWriter(Counter):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1.0)
        return x * self.count


class Collecting(nn.Module):
    """It keeps what it was given, in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.kept = [torch.zeros(3, dtype=F)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.kept.append(x)
        return x * len(self.kept)


class Partial(nn.Module):
    """Of its outputs one is there only if it was asked for."""

    def forward(self, x: torch.Tensor, with_square: bool = False) -> dict[str, torch.Tensor | None]:
        square: torch.Tensor | None = None
        if with_square:
            square = x * x
        return {"double": x * 2, "square": square}


class NoneBelowBound(nn.Module):
    """Its second output is there only where some number is above a bound near those of a call."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        square: torch.Tensor | None = None
        if bool((x > 0.102).any()):
            square = x * x
        return x * 2, square


class InputWriter(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x.mul_(2.0)
        return x + 1


class Noise(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand_like(x)


class Centred(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(0)


class Printing(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        print(x)
        return x


class Refusing(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[-1] != 5:
            raise ValueError("five, please")
        return x


class Nameless(nn.Module):
    @torch.jit.export
    def go(self, x: torch.Tensor) -> torch.Tensor:
        return x


class FixedSize(nn.Module):
    """A trace of it has the size of the example."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(5, 3) * 2.0

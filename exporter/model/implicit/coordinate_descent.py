"""Coordinate descent for first guesses: the loops of NEML2's predictor, as loops that the file contains.

For each element of a batch it solves ``phi(g) + A g = b`` for the rates ``g``, where the inverse of ``phi`` is a law of
rates, component by component (Gauss-Seidel): each by bisection in the driving force, then by Newton steps. The formulas
are those of ``CoordinateDescentPredictor`` (neml2/models/common/CoordinateDescentPredictor.py), in their order, so that
both give the same numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from exporter.model.implicit.owner_tensors import read_tensors

# The arguments of a call, and what it returned.
DescentCall = tuple[tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]], torch.Tensor]
# Compiles a descent from one of its calls.
CompileDescent = Callable[["CoordinateDescent", DescentCall], Callable[..., torch.Tensor]]


class CoordinateDescent(nn.Module):
    """Sweeps over the components of ``g``, each of which is one solve.

    ``rate(w, args)`` returns the rates at driving forces ``w`` of shape ``(batch,)``, ``tangent(w, args)`` these and
    their derivatives. ``args`` is a list of tensors: ``component_count`` of them with one value for each component, in
    the last dimension, then those that all share, and the parameters of ``owner``, the module that computes rates.

    ``forward(coupling, force, args)`` takes ``A`` of shape ``(*batch, n, n)`` and ``b`` of shape ``(*batch, n)``, and
    returns ``g``, of the shape of ``b``."""

    # The name of the class in files, wherever its source stands.
    _jit_override_qualname = "__torch__.torchferry.CoordinateDescent"

    def __init__(
        self,
        rate: Callable[..., torch.Tensor],
        tangent: Callable[..., tuple[torch.Tensor, torch.Tensor]],
        owner: nn.Module,
        counts: tuple[int, int, int],
    ) -> None:
        super().__init__()
        # The module of the law is not a submodule: its parameters are registered elsewhere.
        names = [name for name, _ in owner.named_parameters()]
        self.__dict__ |= {"rate": rate, "tangent": tangent, "owner": owner, "names": names}
        self.sweeps, self.bisections, self.polish = counts
        self.component_count = 0

    if TYPE_CHECKING:
        # TorchScript reads the annotations of a class.
        rate: Callable[..., torch.Tensor]
        tangent: Callable[..., tuple[torch.Tensor, torch.Tensor]]
        owner: nn.Module
        names: list[str]

    def collect_args(self, values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the values and the owner's current parameters."""
        return [*values, *read_tensors(self.owner, self.names)]

    def give_batch(self, names: Sequence[str]) -> None:
        """Have these parameters of the owner first, which have a value for each element."""
        self.names = [*names, *(name for name in self.names if name not in names)]

    def __getstate__(self) -> dict[str, Any]:
        # A forward that is patched in this process is not sent to another.
        return {name: value for name, value in self.__dict__.items() if name != "forward"}

    def infer_shapes(self, coupling: torch.Tensor, force: torch.Tensor, args: list[torch.Tensor]) -> torch.Tensor:
        """Return a tensor of the shape that ``forward`` returns, for tensors without data."""
        return force + coupling.sum(-1)

    def forward(self, coupling: torch.Tensor, force: torch.Tensor, args: list[torch.Tensor]) -> torch.Tensor:
        count = force.size(-1)
        rates = [force.select(-1, i) * 0.0 for i in range(count)]
        for _ in range(self.sweeps):
            for i in range(count):
                right = force.select(-1, i)
                for j in range(count):
                    if j != i:
                        right = right - coupling.select(-2, i).select(-1, j) * rates[j]
                rates[i] = self.solve(coupling.select(-2, i).select(-1, i), right, self.component(args, i))
        return torch.stack(rates, -1)

    def component(self, args: list[torch.Tensor], i: int) -> list[torch.Tensor]:
        """Return the tensors of one component."""
        return [t.select(-1, i) if k < self.component_count else t for k, t in enumerate(args)]

    def solve(self, diagonal: torch.Tensor, right: torch.Tensor, args: list[torch.Tensor]) -> torch.Tensor:
        """Return the rate at the root of ``w + diagonal rate(w) = right``, which lies between 0 and ``right``."""
        zero = right * 0.0
        low, high = zero, zero + 1.0
        sign = torch.where(right < zero, zero - 1.0, zero + 1.0)
        for _ in range(self.bisections):
            middle = (low + high) * 0.5
            w = middle * right
            is_below = sign * (w + diagonal * self.rate(w, args) - right) < zero
            low, high = torch.where(is_below, middle, low), torch.where(is_below, high, middle)
        w = (low + high) * 0.5 * right
        for _ in range(self.polish):
            rate, slope = self.tangent(w, args)
            w = w - (w + diagonal * rate - right) / (diagonal * slope + 1.0)
        return self.rate(w, args)


def find_descents(module: nn.Module) -> dict[str, CoordinateDescent]:
    """Return the coordinate descents of a module by path."""
    return {path: m for path, m in module.named_modules() if isinstance(m, CoordinateDescent)}

"""Inputs drawn anew: by the sampling hints of the contract, seeded, rows of all variables picked together."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from exporter.contract import FLOATING, Sampling, TensorSpec
from exporter.sources.source import Inputs

SPREAD = 0.05
# Where every recorded value of a variable is zero there is no scale to perturb it by; small beside 1, and far
# from rounding.
SCALE_OF_ZEROS = 1e-2


@dataclass(frozen=True)
class Sampler:
    """Draws inputs of a model. ``rows`` are recorded inputs, one leading dimension each where ``batch_ndim`` is 1."""

    specs: tuple[TensorSpec, ...]
    batch_ndim: int
    rows: Inputs | None

    def draw(self, batch: int, generator: torch.Generator) -> Inputs:
        """Inputs of shape ``(batch, *own)``, or ``own`` for fixed shapes, on the CPU."""
        lead = (batch,) if self.batch_ndim else ()
        picked = None
        if self.rows is not None and self.batch_ndim and self.specs:
            count = self.rows[0].shape[0]
            picked = torch.randint(count, lead, generator=generator)
        return tuple(self._draw(i, spec, lead, picked, generator) for i, spec in enumerate(self.specs))

    def _draw(
        self,
        index: int,
        spec: TensorSpec,
        lead: tuple[int, ...],
        picked: torch.Tensor | None,
        generator: torch.Generator,
    ) -> torch.Tensor:
        hint, dtype = spec.sampling, getattr(torch, spec.dtype)
        if hint.kind == "uniform" or self.rows is None:
            return uniform(spec, lead, generator)
        rows = self.rows[index]
        values = rows[picked] if picked is not None else rows.clone()
        if hint.kind == "fixed" or hint.spread == 0.0:
            return values
        scale = float(rows.detach().abs().max()) if rows.numel() else 0.0
        relative, absolute = (
            torch.rand(values.shape, generator=generator, dtype=torch.float64) * 2 - 1 for _ in range(2)
        )
        spread = hint.spread
        noisy = values.to(torch.float64) * (1 + spread * relative)
        return (noisy + spread * (scale or SCALE_OF_ZEROS) * absolute).to(dtype)


def uniform(spec: TensorSpec, lead: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    low, high, dtype = spec.sampling.low, spec.sampling.high, getattr(torch, spec.dtype)
    shape = (*lead, *spec.shape)
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    if not dtype.is_floating_point and not dtype.is_complex:
        top = max(int(low) + 1, int(high))
        return torch.randint(int(low), top, shape, generator=generator).to(dtype)
    parts = [
        low + (high - low) * torch.rand(shape, generator=generator, dtype=torch.float64)
        for _ in range(2 if dtype.is_complex else 1)
    ]
    return (torch.complex(*parts) if dtype.is_complex else parts[0]).to(dtype)


def recorded(spec: TensorSpec, spread: float) -> Sampling:
    return Sampling("recorded", spread=spread) if spec.dtype in FLOATING else Sampling("fixed")

"""Inputs drawn anew: by the sampling hints of the contract, seeded, rows of all variables picked together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from exporter.archive.tensor_spec import FLOATING, Sampling, Shape, TensorSpec, open_sizes
from exporter.model.source import Inputs

SPREAD = 0.05
# Where every recorded value of a variable is zero there is no scale to perturb it by; small beside 1, and far
# from rounding.
SCALE_OF_ZEROS = 1e-2
# How far a row is moved towards another one.
BLEND = 0.25


@dataclass(frozen=True)
class Sampler:
    """Draws inputs of a model. ``rows`` are recorded inputs, one leading dimension each where ``batch_ndim`` is 1.

    Where ``batch_ndim`` is 0, ``rows`` are whole, and their open sizes are drawn anew.
    """

    specs: tuple[TensorSpec, ...]
    batch_ndim: int
    rows: Inputs | None

    def sizes(self, size: int | Mapping[str, int]) -> dict[str, int]:
        """Open sizes by name, from the first of them; no two are equal, and how far they are apart changes with the
        size, so that one taken for the other shows. Where the first is a multiple of 8, so are the others."""
        if not isinstance(size, int):
            return dict(size)
        return {name: size + self.step(size) * i for i, name in enumerate(open_sizes(self.specs))}

    @staticmethod
    def step(size: int) -> int:
        return 8 * (1 + size // 8 % 3) if size and size % 8 == 0 else 1 + size % 3

    def arrangements(self, size: int) -> list[dict[str, int]]:
        """Several open sizes in other orders: the last first, all equal, each far ahead, each alone at 0 and at 1."""
        base = self.sizes(size)
        if len(base) < 2:
            return []
        turned = dict(zip(base, reversed(base.values()), strict=True))
        one_by_one = [{**base, name: other} for other in (4 * size + 3, 0, 1) for name in base]
        return [turned, dict.fromkeys(base, size), *one_by_one]

    def draw(self, size: int | Mapping[str, int], generator: torch.Generator) -> Inputs:
        """Inputs of shape ``(size, *own)``, or ``own`` with ``sizes(size)`` where there is no batch, on the CPU."""
        lead = (size,) if self.batch_ndim and isinstance(size, int) else ()
        picked, other = None, None
        sizes = self.sizes(size)
        rows = self._resized(sizes, generator) if sizes and self.rows is not None else self.rows
        if self.rows is not None and self.batch_ndim and self.specs:
            count = self.rows[0].shape[0]
            picked = torch.randint(count, lead, generator=generator)
            if any(s.sampling.kind == "blended" for s in self.specs):
                part = BLEND * torch.rand(lead, generator=generator, dtype=torch.float64)
                other = torch.randint(count, lead, generator=generator), part
        return tuple(
            _drawn(spec, (*lead, *spec.sized(sizes)), rows[i] if rows else None, picked, other, generator)
            for i, spec in enumerate(self.specs)
        )

    def _resized(self, sizes: Mapping[str, int], generator: torch.Generator) -> Inputs:
        """Recorded inputs with other sizes: entries along an open size are picked, for all variables alike."""
        assert self.rows is not None
        known = {
            n: d for s, t in zip(self.specs, self.rows, strict=True) for n, d in zip(s.shape, t.shape, strict=True)
        }
        picks = {name: torch.randint(max(1, known[name]), (size,), generator=generator) for name, size in sizes.items()}
        return tuple(
            _picked(rows, spec.shape, picks) if rows.numel() else rows.new_zeros(spec.sized(sizes))
            for spec, rows in zip(self.specs, self.rows, strict=True)
        )


def _picked(value: torch.Tensor, shape: Shape, picks: Mapping[str, torch.Tensor]) -> torch.Tensor:
    for at, name in enumerate(shape):
        value = value.index_select(at, picks[name]) if isinstance(name, str) else value
    return value


def _drawn(
    spec: TensorSpec,
    shape: tuple[int, ...],
    rows: torch.Tensor | None,
    picked: torch.Tensor | None,
    other: tuple[torch.Tensor, torch.Tensor] | None,
    generator: torch.Generator,
) -> torch.Tensor:
    hint, dtype = spec.sampling, getattr(torch, spec.dtype)
    if hint.kind == "uniform" or rows is None:
        return uniform(spec, shape, generator)
    values = rows[picked] if picked is not None else rows.clone()
    if hint.kind == "blended" and other is not None:
        at, part = other
        part = part.reshape(-1, *[1] * (values.ndim - 1)).to(dtype)
        return values + part * (rows[at] - values)
    if hint.kind == "fixed" or hint.spread == 0.0:
        return values
    scale = float(rows.detach().abs().max()) if rows.numel() else 0.0
    relative, absolute = (torch.rand(values.shape, generator=generator, dtype=torch.float64) * 2 - 1 for _ in range(2))
    spread = hint.spread
    noisy = values.to(torch.float64) * (1 + spread * relative)
    return (noisy + spread * (scale or SCALE_OF_ZEROS) * absolute).to(dtype)


def uniform(spec: TensorSpec, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    low, high, dtype = spec.sampling.low, spec.sampling.high, getattr(torch, spec.dtype)
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


def blended(spec: TensorSpec) -> Sampling:
    return Sampling("blended") if spec.dtype in FLOATING else Sampling("fixed")


def recorded(spec: TensorSpec, spread: float) -> Sampling:
    return Sampling("recorded", spread=spread) if spec.dtype in FLOATING else Sampling("fixed")

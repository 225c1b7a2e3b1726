"""Sampling of inputs: seeded, by the sampling hints of the contract, rows of all variables picked together."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from exporter.archive.tensor_spec import FLOATING, Sampling, Shape, TensorSpec, list_dynamic_sizes
from exporter.model.source import Inputs

SPREAD = 0.05
# The scale of perturbations of a variable whose recorded values are all zero: small compared with 1, and far
# from rounding.
ZERO_SCALE = 1e-2
# Largest fraction of the way by which a row is moved towards another one.
BLEND = 0.25


@dataclass(frozen=True)
class InputSampler:
    """A source of random inputs. ``rows`` are recorded inputs, with one leading dimension where ``batch_ndim`` is 1.

    Where ``batch_ndim`` is 0, ``rows`` have full shapes, and their open sizes are drawn anew."""

    specs: tuple[TensorSpec, ...]
    batch_ndim: int
    rows: Inputs | None

    def resolve_sizes(self, size: int | Mapping[str, int]) -> dict[str, int]:
        """Return open sizes by name, given the first one. No two are equal, and their distance changes with the size,
        so that a confusion of two sizes shows. If the first is a multiple of 8, so are the others."""
        if not isinstance(size, int):
            return dict(size)
        return {name: size + self.compute_size_step(size) * i for i, name in enumerate(list_dynamic_sizes(self.specs))}

    @staticmethod
    def compute_size_step(size: int) -> int:
        """Return the distance between two open sizes."""
        return 8 * (1 + size // 8 % 3) if size and size % 8 == 0 else 1 + size % 3

    def arrange_sizes(self, size: int) -> list[dict[str, int]]:
        """Return open sizes in other orders: the last first, all equal, each far ahead, each alone at 0 and 1."""
        base = self.resolve_sizes(size)
        if len(base) < 2:
            return []
        reversed_sizes = dict(zip(base, reversed(base.values()), strict=True))
        one_by_one = [{**base, name: new_size} for new_size in (4 * size + 3, 0, 1) for name in base]
        return [reversed_sizes, dict.fromkeys(base, size), *one_by_one]

    def draw(self, size: int | Mapping[str, int], generator: torch.Generator) -> Inputs:
        """Draw inputs of shape ``(size, *event)``, or ``event`` at ``resolve_sizes(size)`` without batch (CPU)."""
        batch_shape = (size,) if self.batch_ndim and isinstance(size, int) else ()
        row_index, blend = None, None
        sizes = self.resolve_sizes(size)
        rows = self._resize_rows(sizes, generator) if sizes and self.rows is not None else self.rows
        if self.rows is not None and self.batch_ndim and self.specs:
            count = self.rows[0].shape[0]
            row_index = torch.randint(count, batch_shape, generator=generator)
            if any(s.sampling.kind == "blended" for s in self.specs):
                fraction = BLEND * torch.rand(batch_shape, generator=generator, dtype=torch.float64)
                blend = torch.randint(count, batch_shape, generator=generator), fraction
        values = []
        for i, spec in enumerate(self.specs):
            shape, recorded = (*batch_shape, *spec.resolve_shape(sizes)), rows[i] if rows else None
            values.append(_draw_variable(spec, shape, recorded, row_index, blend, generator))
        return tuple(values)

    def _resize_rows(self, sizes: Mapping[str, int], generator: torch.Generator) -> Inputs:
        """Resize recorded inputs: entries along an open size are picked, for all variables alike."""
        assert self.rows is not None
        pairs = zip(self.specs, self.rows, strict=True)
        recorded_sizes = {n: d for s, t in pairs for n, d in zip(s.shape, t.shape, strict=True)}
        picks = {n: torch.randint(max(1, recorded_sizes[n]), (size,), generator=generator) for n, size in sizes.items()}
        return tuple(
            _select_entries(rows, spec.shape, picks) if rows.numel() else rows.new_zeros(spec.resolve_shape(sizes))
            for spec, rows in zip(self.specs, self.rows, strict=True)
        )


def _select_entries(value: torch.Tensor, shape: Shape, picks: Mapping[str, torch.Tensor]) -> torch.Tensor:
    for axis, name in enumerate(shape):
        value = value.index_select(axis, picks[name]) if isinstance(name, str) else value
    return value


def _draw_variable(
    spec: TensorSpec,
    shape: tuple[int, ...],
    rows: torch.Tensor | None,
    row_index: torch.Tensor | None,
    blend: tuple[torch.Tensor, torch.Tensor] | None,
    generator: torch.Generator,
) -> torch.Tensor:
    hint, dtype = spec.sampling, getattr(torch, spec.dtype)
    if hint.kind == "uniform" or rows is None:
        return draw_uniform(spec, shape, generator)
    values = rows[row_index] if row_index is not None else rows.clone()
    if hint.kind == "blended" and blend is not None:
        partner_index, fraction = blend
        fraction = fraction.reshape(-1, *[1] * (values.ndim - 1)).to(dtype)
        return values + fraction * (rows[partner_index] - values)
    if hint.kind == "fixed" or hint.spread == 0.0:
        return values
    scale = float(rows.detach().abs().max()) if rows.numel() else 0.0
    relative, absolute = (torch.rand(values.shape, generator=generator, dtype=torch.float64) * 2 - 1 for _ in range(2))
    noisy = values.to(torch.float64) * (1 + hint.spread * relative)
    return (noisy + hint.spread * (scale or ZERO_SCALE) * absolute).to(dtype)


def draw_uniform(spec: TensorSpec, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Draw uniform values of this shape and dtype, in the spec's range."""
    low, high, dtype = spec.sampling.low, spec.sampling.high, getattr(torch, spec.dtype)
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    if not dtype.is_floating_point and not dtype.is_complex:
        top = max(int(low) + 1, int(high))
        return torch.randint(int(low), top, shape, generator=generator).to(dtype)
    units = (torch.rand(shape, generator=generator, dtype=torch.float64) for _ in range(2 if dtype.is_complex else 1))
    parts = [low + (high - low) * unit for unit in units]
    return (torch.complex(*parts) if dtype.is_complex else parts[0]).to(dtype)


def hint_at_rows(specs: Sequence[TensorSpec], hint: Sampling) -> tuple[TensorSpec, ...]:
    """Return the specs with a hint for recorded rows, which stay fixed for dtypes that are not floating."""
    fixed = Sampling("fixed")
    return tuple(dataclasses.replace(s, sampling=hint if s.dtype in FLOATING else fixed) for s in specs)

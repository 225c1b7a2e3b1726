"""Sizes of the batch, or of what is open: which are traced, which eager mode admits, which outputs have."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence

import torch

from exporter.archive.contract import Batch
from exporter.archive.tensor_spec import Shape, TensorSpec, fits_shape
from exporter.common.errors import CaptureError, WarmupError
from exporter.common.forking import NotRun, isolated
from exporter.model.eager.evaluation import evaluate, forward_line
from exporter.model.eager.input_sampling import Sampler
from exporter.model.source import Source

# The traced size and the one it is compared with: neither may be a dimension of the model.
TRACED_SIZES = (5, 7, 11, 13, 17, 19, 23, 29)
# For open sizes that must be larger, or divisible: an image that is halved three times.
LARGER_SIZES = (16, 40, 72, 136)
PRIME = 13
LADDER = (0, 1, 2, PRIME, 1000)
# A batch with more numbers than this in its inputs and outputs is left out of the ladder: 32 MB, and intermediates.
NUMBERS = 4_000_000


def distinct_sizes(source: Source) -> tuple[int, int]:
    """Two batch sizes that no dimension of the model has, so that a size that was baked in shows."""
    taken = _dimensions(source)
    free = [size for size in TRACED_SIZES if size not in taken]
    fresh = itertools.count(31, 2)
    while len(free) < 2:
        size = next(fresh)
        free += [size] if size not in taken else []
    return free[0], free[1]


def admitted_sizes(source: Source, sampler: Sampler) -> tuple[int, int]:
    """Two choices for the first open size, which others follow, that eager mode admits and that give no size that is a
    dimension of the model. Raises what eager mode raised where there are none."""
    generator = torch.Generator().manual_seed(0)
    taken = _dimensions(source)
    # Whole numbers may point at rows: where sizes are as large as those that were given, they still do.
    given = max((d for t in source.calls[-1] for d in t.shape), default=0) if source.calls else 0
    larger = [given + 1, 2 * given + 1, 3 * given + 2] if given > 2 else []
    found: list[int] = []
    refused: list[WarmupError] = []
    for size in (*TRACED_SIZES, *LARGER_SIZES, *larger):
        alike = len(sampler.sizes(size)) > 1 and any(sampler.step(size) == sampler.step(other) for other in found)
        if alike or taken & set(sampler.sizes(size).values()):
            continue
        try:
            evaluate(source, sampler.draw(size, generator))
        except WarmupError as error:
            refused.append(error)
            continue
        found.append(size)
        if len(found) == 2:
            return found[0], found[1]
    if refused:
        raise refused[0]
    raise WarmupError(f"model {source.name!r} has every size that it could be traced at as a dimension of its own")


def _dimensions(source: Source) -> set[int | str]:
    tensors = [*source.named.parameters(), *source.named.buffers()]
    return {d for spec in source.inputs for d in spec.shape} | {d for t in tensors for d in t.shape}


def with_open_sizes(
    source: Source,
    name: str,
    shapes: Sequence[tuple[int, ...]],
    sizes: Sequence[Mapping[str, int]],
    declared: Shape,
) -> Shape:
    """The shape of an output from its shapes at two choices of the open sizes. Raises ``CaptureError``."""
    own: list[int | str] = []
    for at, seen in enumerate(zip(*shapes, strict=True) if len({len(s) for s in shapes}) == 1 else [()]):
        fits = [n for n in source.sizes if all(d == s[n] for d, s in zip(seen, sizes, strict=False))]
        wanted = declared[at : at + 1]
        if not seen or (len(set(seen)) > 1 and not fits):
            raise _of_its_own(source, name, zip(shapes, sizes, strict=True), f"numbers, or {', '.join(source.sizes)}")
        own.append(wanted[0] if wanted and wanted[0] in fits else fits[0] if fits else seen[0])
    return tuple(own)


def hold_sizes(
    source: Source, inputs: Sequence[torch.Tensor], specs: Sequence[TensorSpec], outputs: Sequence[torch.Tensor]
) -> None:
    """Raises ``CaptureError`` where an output has other open sizes than ``specs`` say for these inputs."""
    known: dict[str, int] = {}
    for spec, value in zip(source.inputs, inputs, strict=True):
        fits_shape(value.shape, spec.shape, known)
    for spec, value in zip(specs, outputs, strict=True):
        if not fits_shape(value.shape, spec.shape, known):
            expected = str(list(spec.shape)).replace("'", "")
            raise _of_its_own(source, spec.name, [(tuple(value.shape), known)], expected)


def _of_its_own(
    source: Source, name: str, seen: Iterable[tuple[Sequence[int], Mapping[str, int]]], expected: str
) -> CaptureError:
    return CaptureError(
        f"output {name!r} of model {source.name!r} has a size that is neither fixed nor an input's",
        check="open sizes",
        where=forward_line(source),
        got="; ".join(f"shape {list(shape)} at {text_of(sizes)}" for shape, sizes in seen),
        expected=expected,
        mend="return a tensor whose sizes are those of inputs",
    )


def text_of(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name} = {size}" for name, size in sizes.items())


def admitted_batches(
    source: Source, sampler: Sampler, outputs: Sequence[TensorSpec], traced: int, generator: torch.Generator
) -> Batch:
    """The sizes of ``LADDER`` that eager mode itself runs; the archive is held to the same ones."""
    if not source.varies:
        return Batch(0, limits="fixed shapes: the elements of a batch are not independent")
    lead = "batch" if source.batch_ndim else source.sizes[0]
    sizes, limits = [], []
    for size in sorted({*LADDER, traced}):
        if numbers_at(source, (*source.inputs, *outputs), sampler, size) > NUMBERS:
            limits.append(f"{lead} {size}: not run, inputs and outputs would hold more than {NUMBERS} numbers")
            continue
        inputs = sampler.draw(size, generator)
        try:
            if size == 0 and source.differentiates:
                # Backward formulas of torch's have ended processes there.
                isolated(evaluate, source, inputs)
            evaluate(source, inputs)
        except WarmupError as error:
            limits.append(f"{lead} {size}: {error.details.get('got', error.what)}")
        except NotRun as error:
            limits.append(f"{lead} {size}: {error}")
        else:
            sizes.append(size)
    return Batch(source.batch_ndim, tuple(sizes), (0, 1, 2) if source.batch_ndim else (), "; ".join(limits))


def numbers_at(source: Source, specs: Sequence[TensorSpec], sampler: Sampler, size: int | Mapping[str, int]) -> int:
    """How many numbers these variables have at a size of the batch, or of the first open size, or at open sizes."""
    lead = size if source.batch_ndim and isinstance(size, int) else 1
    return lead * sum(math.prod(spec.sized(sampler.sizes(size))) for spec in specs)

"""Batch sizes and open sizes: the traced ones, those that eager mode accepts, those of the outputs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence

import torch

from exporter.archive.contract import LARGEST_RUN, Batch
from exporter.archive.tensor_spec import Shape, TensorSpec, fits_shape
from exporter.common.errors import CaptureError, WarmupError
from exporter.common.forking import ForkFailedError, run_in_fork
from exporter.model.eager.call_cost import ALWAYS_RUN, CallCost
from exporter.model.eager.evaluation import evaluate, find_forward_line
from exporter.model.eager.input_sampling import InputSampler
from exporter.model.source import Source

# The name of findings about open sizes.
OPEN_SIZES = "open sizes"
# Candidates for the traced size and the one compared with it: neither may be a dimension of the model.
TRACED_SIZES = (5, 7, 11, 13, 17, 19, 23, 29)
# Those where a call is costly.
SMALL_SIZES = (2, 3, 4)
# For open sizes that must be larger, or divisible: for example an image that is halved three times.
LARGER_SIZES = (16, 40, 72, 136)
LADDER = (0, 1, 2, ALWAYS_RUN, LARGEST_RUN)
# Runs beside these where the largest costs too much.
MIDDLE = 64
# The ladder skips batches with more numbers than this in inputs and outputs: 32 MB, and intermediates.
MAX_NUMBERS = 4_000_000


def choose_trace_sizes(source: Source, *, is_costly: bool = False) -> tuple[int, int]:
    """Choose two batch sizes that no dimension of the model has, so that a hard-coded size shows; small ones of a model
    that ``is_costly``."""
    dimensions = _collect_dimensions(source)
    candidates = itertools.chain(SMALL_SIZES if is_costly else (), TRACED_SIZES, itertools.count(31, 2))
    sizes = (size for size in candidates if size not in dimensions)
    return next(sizes), next(sizes)


def probe_trace_sizes(source: Source, sampler: InputSampler) -> tuple[int, int]:
    """Find two values of the first open size, which others follow, that eager mode accepts and that give no size
    equal to a dimension of the model. Raises the error of eager mode if there are none."""
    generator = torch.Generator().manual_seed(0)
    dimensions = _collect_dimensions(source)
    # Integer inputs may index rows: they stay valid for sizes as large as those in the recorded calls.
    largest = max((d for t in source.calls[-1] for d in t.shape), default=0) if source.calls else 0
    larger = [largest + 1, 2 * largest + 1, 3 * largest + 2] if largest > 2 else []
    sizes: list[int] = []
    errors: list[WarmupError] = []
    for size in (*TRACED_SIZES, *LARGER_SIZES, *larger):
        steps = map(sampler.compute_size_step, sizes)
        is_similar = len(sampler.resolve_sizes(size)) > 1 and sampler.compute_size_step(size) in steps
        if is_similar or dimensions & set(sampler.resolve_sizes(size).values()):
            continue
        try:
            evaluate(source, sampler.draw(size, generator))
        except WarmupError as error:
            errors.append(error)
            continue
        sizes.append(size)
        if len(sizes) == 2:
            return sizes[0], sizes[1]
    if errors:
        raise errors[0]
    raise WarmupError(f"model {source.name!r} has every size at which it could be traced as a dimension of its own")


def _collect_dimensions(source: Source) -> set[int | str]:
    tensors = [*source.parameter_module.parameters(), *source.parameter_module.buffers()]
    return {d for spec in source.inputs for d in spec.shape} | {d for t in tensors for d in t.shape}


def infer_dynamic_shape(
    source: Source, name: str, shapes: Sequence[tuple[int, ...]], sizes: Sequence[Mapping[str, int]], declared: Shape
) -> Shape:
    """Infer an output's shape from its shapes at two choices of the open sizes. Raises ``CaptureError``."""
    shape: list[int | str] = []
    for axis, dims in enumerate(zip(*shapes, strict=True) if len({len(s) for s in shapes}) == 1 else [()]):
        names = [n for n in source.sizes if all(d == s[n] for d, s in zip(dims, sizes, strict=False))]
        if not dims or (len(set(dims)) > 1 and not names):
            expected = f"numbers, or {', '.join(source.sizes)}"
            raise _make_size_error(source, name, zip(shapes, sizes, strict=True), expected)
        declared_names = [d for d in declared[axis : axis + 1] if d in names]
        shape.append(declared_names[0] if declared_names else names[0] if names else dims[0])
    return tuple(shape)


def check_output_sizes(
    source: Source, inputs: Sequence[torch.Tensor], specs: Sequence[TensorSpec], outputs: Sequence[torch.Tensor]
) -> None:
    """Raise ``CaptureError`` if an output has other open sizes than ``specs`` say for these inputs."""
    known_sizes: dict[str, int] = {}
    for spec, value in zip(source.inputs, inputs, strict=True):
        fits_shape(value.shape, spec.shape, known_sizes)
    for spec, value in zip(specs, outputs, strict=True):
        if not fits_shape(value.shape, spec.shape, known_sizes):
            expected = str(list(spec.shape)).replace("'", "")
            raise _make_size_error(source, spec.name, [(tuple(value.shape), known_sizes)], expected)


def _make_size_error(
    source: Source, name: str, observations: Iterable[tuple[Sequence[int], Mapping[str, int]]], expected: str
) -> CaptureError:
    return CaptureError(
        f"output {name!r} of model {source.name!r} has a size that is neither fixed nor an input's",
        check=OPEN_SIZES,
        where=find_forward_line(source),
        got="; ".join(f"shape {list(shape)} at {format_sizes(sizes)}" for shape, sizes in observations),
        expected=expected,
        mend="return a tensor whose sizes are sizes of inputs",
    )


def format_sizes(sizes: Mapping[str, int]) -> str:
    """Format sizes as text."""
    return ", ".join(f"{name} = {size}" for name, size in sizes.items())


def probe_batch_sizes(
    source: Source,
    sampler: InputSampler,
    outputs: Sequence[TensorSpec],
    traced: int,
    generator: torch.Generator,
    cost: CallCost,
) -> Batch:
    """Return the sizes of ``LADDER`` that eager mode itself runs at a cost that a check may have; the archive must run
    the same ones."""
    if not source.has_dynamic_size:
        return Batch(0, limits="fixed shapes: the elements of a batch are not independent")
    size_name, sizes, limits = source.size_name, [], []

    def explain_cost(size: int) -> str:
        """Explain why a size costs too much; the empty text if it does not."""
        if count_numbers(source, (*source.inputs, *outputs), sampler, size) > MAX_NUMBERS:
            return f"inputs and outputs would hold more than {MAX_NUMBERS} numbers"
        return "" if size == traced else cost.explain(size)

    further = (traced, MIDDLE) if explain_cost(LARGEST_RUN) else (traced,)
    for size in sorted({*LADDER, *further}):
        if reason := explain_cost(size):
            limits.append(f"{size_name} {size}: not run, {reason}")
            continue
        inputs = sampler.draw(size, generator)
        try:
            if size == 0 and source.uses_autograd:
                # Some of torch's backward formulas crash the process at size 0.
                run_in_fork(evaluate, source, inputs)
            values = evaluate(source, inputs)
            if size == 0 and [*values] != [spec.name for spec in outputs]:
                # Layers of torch may return less where there is nothing.
                limits.append(f"{size_name} 0: other outputs: {', '.join(values)}")
                continue
        except WarmupError as error:
            limits.append(f"{size_name} {size}: {error.details.get('got', error.what)}")
        except CaptureError as error:
            if size:
                raise
            limits.append(f"{size_name} 0: {error.details.get('got', error.what)}")
        except ForkFailedError as error:
            limits.append(f"{size_name} {size}: {error}")
        else:
            sizes.append(size)
    return Batch(source.batch_ndim, tuple(sizes), (0, 1, 2) if source.batch_ndim else (), "; ".join(limits))


def count_numbers(
    source: Source, specs: Sequence[TensorSpec], sampler: InputSampler, size: int | Mapping[str, int]
) -> int:
    """Count the numbers in these variables at a size of the batch, or of the first open size, or at open sizes."""
    batch_size = size if source.batch_ndim and isinstance(size, int) else 1
    return batch_size * sum(math.prod(spec.resolve_shape(sampler.resolve_sizes(size))) for spec in specs)

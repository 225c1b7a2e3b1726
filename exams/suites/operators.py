"""torch's own database of operators (``op_db``): samples of float64 and float32, also written in place.

https://github.com/pytorch/pytorch/blob/main/torch/testing/_internal/common_methods_invocations.py"""

from __future__ import annotations

import functools
import itertools
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from exams.examination import Case
from exams.pipelines import DERIVATIVES, FILES
from exams.redrawing import make_batched, redraw, spread
from exams.samples import ArrangedCall, Sample

DTYPES = {"float64": torch.float64, "float32": torch.float32}
PIPELINES_OF = {
    "float64": (*FILES, *DERIVATIVES),
    "float32": ("pt", "onnx", "c"),
    "batch": ("pt", "libtorch", "onnx", "c", "jacobian"),
}
BATCH = "batch"
# Seeds of the samples that are exported, and of those that a file is judged with.
SEEDS = (0, 1)


@functools.cache
def _list_operators() -> dict[str, Any]:
    from torch.testing._internal.common_methods_invocations import op_db

    return {f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name: op for op in op_db}


def list_cases() -> list[str]:
    """List the cases: an operator with a dtype, in whole shapes or with a batch."""
    names = []
    for name, op in _list_operators().items():
        dtypes = [d for d, dtype in DTYPES.items() if dtype in op.supported_dtypes("cpu")]
        names += [f"{name} {dtype}" for dtype in dtypes] + [f"{name} {BATCH}"] * ("float64" in dtypes)
    return names


def make_case(name: str, most: int) -> Case:
    """Make a case by its name, with at most so many samples, spread over those that there are."""
    operator, _, kind = name.rpartition(" ")
    op, dtype = _list_operators()[operator], DTYPES.get(kind, torch.float64)
    return make_database_case([list(_make_samples(op, dtype)), list(_make_writes(op, dtype))], kind, most)


def make_database_case(kinds: Sequence[Sequence[Sample]], kind: str, most: int) -> Case:
    """Make a case of samples of some kinds, with at most so many of each; with a batch, of those that have one."""
    if kind == BATCH:
        kinds = [[batched for s in samples if (batched := make_batched(s)) is not None] for samples in kinds]
    return Case([sample for samples in kinds for sample in spread(samples, most)], PIPELINES_OF[kind])


def _make_samples(op: Any, dtype: torch.dtype) -> Iterator[Sample]:
    """Yield a sample for each of the database, with the inputs of another seed."""
    drawn = [_draw_samples(op, dtype, seed) for seed in SEEDS]
    for first, second in itertools.zip_longest(*drawn):
        if first is None:
            return
        # What makes an input symmetric, say, where the operator takes that for granted.
        call = _arrange(functools.partial(op.gradcheck_wrapper, op), first)
        yield Sample(call, call.example, (redraw(call, None if second is None else _arrange(op, second)),))


def _make_writes(op: Any, dtype: torch.dtype) -> Iterator[Sample]:
    """Yield samples of the first of the database, written in place."""
    pairs = zip(*(_draw_samples(op, dtype, seed) for seed in SEEDS), strict=False)
    for first, second in itertools.islice(pairs, 2):
        if op.inplace_variant is not None and _fits_in_place(op, first):
            call = _arrange(_write_in_place(op.inplace_variant), first)
            yield Sample(call, call.example, (redraw(call, _arrange(op, second)),))


def _arrange(operator: Any, sample: Any) -> ArrangedCall:
    return ArrangedCall(operator, (sample.input, *sample.args), sample.kwargs)


def _draw_samples(op: Any, dtype: torch.dtype, seed: int) -> Sequence[Any]:
    torch.manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(op.sample_inputs("cpu", dtype))


def _write_in_place(operator: Any) -> Any:
    def write(first: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Write to a copy, through a view of it, and use what became of the whole."""
        buffer = torch.stack([first, first])
        operator(buffer[0], *args, **kwargs)
        return buffer.sum(0)

    return write


def _fits_in_place(op: Any, sample: Any) -> bool:
    """Return whether the result fits into the input's place."""
    if not isinstance(sample.input, torch.Tensor) or sample.broadcasts_input:
        return False
    try:
        op.inplace_variant(sample.input.detach().clone(), *sample.args, **sample.kwargs)
    except Exception:
        return False
    return True

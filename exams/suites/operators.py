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
from exams.redrawing import make_batched, perturb
from exams.samples import ArrangedCall, Sample

DTYPES = {"float64": torch.float64, "float32": torch.float32}
WHOLE = {
    "float64": ("pt", "libtorch", "program", "onnx", "onnx.reference", "c", "jacobian", "jvp vjp"),
    "float32": ("pt", "onnx", "c"),
}
OF_BATCHES = ("pt", "libtorch", "onnx", "c", "jacobian")
BATCH = "batch"
# Seeds of the samples that are exported, and of those that a file is judged with.
SEEDS = (0, 1)
IN_PLACE = "in place"


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
    op, dtype = _list_operators()[operator], DTYPES[kind if kind in DTYPES else "float64"]
    drawn = list(_make_samples(op, dtype))
    plain = [sample for sample in drawn if IN_PLACE not in sample.label]
    samples = plain[:: -(-len(plain) // most)] if plain else []
    samples += [sample for sample in drawn if IN_PLACE in sample.label]
    if kind != BATCH:
        return Case(samples, WHOLE[kind])
    return Case([s for sample in samples if (s := make_batched(sample)) is not None], OF_BATCHES, "yes")


def _make_samples(op: Any, dtype: torch.dtype) -> Iterator[Sample]:
    """Yield a sample for each of the database, with the inputs of another seed, and some that write in place."""
    drawn = [_draw_samples(op, dtype, seed) for seed in SEEDS]
    in_place = op.inplace_variant
    for number, (first, second) in enumerate(itertools.zip_longest(*drawn)):
        if first is None:
            return
        # What makes an input symmetric, say, where the operator takes that for granted.
        call = _arrange(functools.partial(op.gradcheck_wrapper, op), first)
        other = call if second is None else _arrange(op, second)
        is_same = second is not None and call.takes_same(other)
        fresh = other.example if is_same else tuple(perturb(tensor) for tensor in call.example)
        yield Sample(str(number), call, call.example, (fresh,))
        if in_place is not None and number < 2 and _fits_in_place(op, first):
            write = _arrange(_write_in_place(in_place), first)
            yield Sample(f"{number} {IN_PLACE}", write, write.example, (fresh,))


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

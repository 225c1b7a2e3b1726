"""torch's own database of modules (``module_db``): in eval mode, samples of float64 and float32.

https://github.com/pytorch/pytorch/blob/main/torch/testing/_internal/common_modules.py"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from exams.examination import Case
from exams.redrawing import redraw
from exams.samples import ArrangedCall, Sample
from exams.suites.operators import BATCH, DTYPES, SEEDS, make_database_case


@functools.cache
def _list_modules() -> dict[str, Any]:
    from torch.testing._internal.common_modules import module_db

    return {info.name: info for info in module_db}


def list_cases() -> list[str]:
    """List the cases: a module with a dtype, in whole shapes or with a batch."""
    return [f"{name} {kind}" for name in _list_modules() for kind in (*DTYPES, BATCH)]


def make_case(name: str, most: int) -> Case:
    """Make a case by its name, with at most so many samples, spread over those that there are."""
    module, _, kind = name.rpartition(" ")
    samples = list(_make_samples(_list_modules()[module], DTYPES.get(kind, torch.float64)))
    return make_database_case([samples], kind, most)


def _make_samples(info: Any, dtype: torch.dtype) -> Iterator[Sample]:
    """Yield a sample for each of the database, with the inputs of another seed where they fit the same module."""
    first, second = (_draw_inputs(info, dtype, seed) for seed in SEEDS)
    for number, drawn in enumerate(first):
        constructor = drawn.constructor_input
        torch.manual_seed(0)
        module = info.module_cls(*constructor.args, **constructor.kwargs).to(dtype).eval()
        call = _arrange(module, drawn)
        other = _arrange(module, second[number]) if number < len(second) else None
        if any(isinstance(p, torch.nn.parameter.UninitializedParameter) for p in module.parameters()):
            # A lazy module gets its shapes in its first call.
            call(*(tensor.clone() for tensor in call.example))
        yield Sample(call, call.example, (redraw(call, other),))


def _arrange(module: Any, drawn: Any) -> ArrangedCall:
    return ArrangedCall(module, drawn.forward_input.args, drawn.forward_input.kwargs)


def _draw_inputs(info: Any, dtype: torch.dtype, seed: int) -> list[Any]:
    torch.manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        drawn = info.module_inputs_func(info, device="cpu", dtype=dtype, requires_grad=False, training=False)
        return [sample for sample in drawn if sample.forward_input is not None]

"""The examples that torch has for its own exporter (``torch._export.db``): each tensor of their arguments is an input.

https://github.com/pytorch/pytorch/tree/main/torch/_export/db/examples"""

from __future__ import annotations

import copy
import functools
import inspect
from typing import Any

import torch

from exams.examination import Case
from exams.pipelines import DERIVATIVES, FILES
from exams.samples import ArrangedCall, Sample, Tensors

# Seeds of the inputs that files are judged with.
SEEDS = (1, 2)


@functools.cache
def _list_examples() -> dict[str, Any]:
    from torch._export.db.examples import all_examples

    return all_examples()


def list_cases() -> list[str]:
    """List the examples."""
    return sorted(_list_examples())


def make_case(name: str, most: int) -> Case:
    """Make a case by its name: one sample, in whole shapes, whatever ``most`` is."""
    del most
    example = _list_examples()[name]
    bound = inspect.signature(example.model.forward).bind(*example.example_args, **example.example_kwargs)
    call = ArrangedCall(copy.deepcopy(example.model).eval(), bound.args, bound.kwargs)
    return Case(
        [Sample(call, call.example, tuple(_redraw(call.example, seed) for seed in SEEDS))], (*FILES, *DERIVATIVES)
    )


def _redraw(tensors: Tensors, seed: int) -> Tensors:
    """Return tensors of other numbers; integers and booleans stay, since they are sizes and branches."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(
        torch.randn(t.shape, dtype=torch.float64, generator=generator).to(t.dtype) if t.is_floating_point() else t
        for t in tensors
    )

"""Check of other numbers of batch dimensions. The file flattens them to the traced one, as independent elements.

A model whose outputs then differ because its code queries the rank is refused. One that counts dimensions from the
front (``x.sum(1)``) does not support them, which is a limit and not a loss."""

from __future__ import annotations

import functools
import linecache
import re

from exporter.archive.contract import Finding
from exporter.model.source import Inputs, Source
from exporter.soundness.check_context import EagerContext, describe_mismatch, make_refusal, run_eager
from exporter.soundness.execution_paths import Step, find_divergence, raises_in_user_code

CHECK = "batch dimensions"
_MEND = "compute the same for any number of batch dimensions: x.sum(-1), x[..., 0]"


def check(context: EagerContext) -> list[Finding]:
    """Check that the model computes the same for any number of batch dimensions."""
    source = context.source
    return context.room(_check, context.inputs) if source.batch_ndim and source.inputs else []


def _check(source: Source, inputs: Inputs) -> list[Finding]:
    flat = run_eager(source, inputs)
    if isinstance(flat, str):
        return []
    batch_size = inputs[0].shape[0]
    shapes = {"no batch dimension": (), "two batch dimensions": (batch_size, 1)}
    for label, batch_shape in shapes.items():
        reshaped = tuple(t[0] if not batch_shape else t.reshape(*batch_shape, *t.shape[1:]) for t in inputs)
        got = run_eager(source, reshaped)
        if isinstance(got, str) or list(got) != list(flat):
            continue
        for name, value in flat.items():
            if value.shape[:1] != (batch_size,):
                continue
            expected = value[0] if not batch_shape else value.reshape(*batch_shape, *value.shape[1:])
            mismatch = describe_mismatch(got[name], expected)
            if got[name].shape != expected.shape or not mismatch:
                continue
            run = functools.partial(run_eager, source, reshaped)
            step = find_divergence(lambda: run_eager(source, inputs), run)
            if step and _branches_on_rank(step) and not raises_in_user_code(run):
                evidence = f"output {name!r}: {mismatch} for the same element in a batch"
                what = f"the model computes something else for {label}"
                return [make_refusal(CHECK, what, step.where, evidence, _MEND)]
    return []


def _branches_on_rank(step: Step) -> bool:
    """Return whether a line branches on a number of dimensions.

    Other branches diverge for other reasons: a dimension that is counted from the front is another one now."""
    line = linecache.getline(step.code.co_filename, step.line)
    return step.is_branch and bool(re.search(r"\.dim\(|\bndim|ndimension|len\(.*(shape|size)|\brank\b", line))

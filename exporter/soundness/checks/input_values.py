"""Check of the capture against eager mode at values that warmup did not show it."""

from __future__ import annotations

from exporter.archive.contract import Finding
from exporter.common.forking import run_in_fork
from exporter.common.tensors import copy_transposed, copy_with_gaps
from exporter.model.eager.evaluation import eager_context, find_forward_line
from exporter.soundness.check_context import CaptureContext, find_disagreement, locate_divergence, run_eager
from exporter.soundness.checks.execution_context import LAYOUT, LAYOUT_CALLS
from exporter.soundness.footprint import find_suspect_line

CHECK = "values"


def check(context: CaptureContext) -> list[Finding]:
    """Check that the capture agrees with eager mode at every draw."""
    return run_in_fork(_check, context)


def _check(context: CaptureContext) -> list[Finding]:
    source = context.source
    with eager_context(source):
        for label, inputs in context.draws:
            mismatch = find_disagreement(context, inputs)
            if not mismatch:
                continue
            where, what = locate_divergence(source, context.draws[0][1], inputs)
            return [
                Finding(
                    CHECK,
                    "the capture computes something else than the model",
                    where or _find_warning_line(context) or find_forward_line(source),
                    severity="unsound",
                    evidence="; ".join(filter(None, (f"inputs: {label}: {mismatch}", what))),
                    mend="compute with tensors only: torch.where instead of a branch, no values kept from an earlier "
                    "run, no .data of an input",
                )
            ]
        # A graph of operators relies on the strides that it saw: the file copies inputs first.
        copies_inputs = context.warm.contiguous or source.uses_autograd
        return [*_find_other_operations(context), *([] if copies_inputs else _check_layouts(context))]


def _find_other_operations(context: CaptureContext) -> list[Finding]:
    """Report runs at other values that record other operations or literals, although every number agrees."""
    if context.source.uses_autograd:
        return []
    where, what = locate_divergence(context.source, context.draws[0][1], context.draws[1][1])
    if not what:
        return []
    reason = "the capture agrees with eager mode at every draw"
    return [Finding(CHECK, f"two runs record different operations: {what}", where, reason=reason)]


def _check_layouts(context: CaptureContext) -> list[Finding]:
    """Check other memory layouts, where the file passes inputs to the capture without a copy."""
    first = context.draws[0][1]
    for label, change in (
        ("gaps between elements", copy_with_gaps),
        ("dimensions reversed in memory", copy_transposed),
    ):
        mismatch = find_disagreement(context, tuple(map(change, first)), as_they_are=True)
        if mismatch:
            return [
                Finding(
                    LAYOUT,
                    "the capture keeps the memory layout of the inputs that it saw",
                    find_suspect_line(lambda: run_eager(context.source, first), LAYOUT_CALLS)
                    or find_forward_line(context.source),
                    severity="unsound",
                    evidence=f"inputs with {label}: {mismatch}",
                    mend="no strides of an input in the code: unfold instead of as_strided, or x = x.contiguous()",
                )
            ]
    return []


def _find_warning_line(context: CaptureContext) -> str:
    """Return the first line at which torch itself warned: a hint where nothing else tells more."""
    return next((where for where, _ in context.trace_warnings if where), "")

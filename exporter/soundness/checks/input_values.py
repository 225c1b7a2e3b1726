"""Check of the capture against eager mode at values that warmup did not show it."""

from __future__ import annotations

from exporter.archive.contract import Finding
from exporter.common.tensors import copy_transposed, copy_with_gaps
from exporter.model.eager.evaluation import eager_context, find_forward_line
from exporter.soundness.check_context import (
    CaptureContext,
    find_disagreement,
    locate_divergence,
    make_refusal,
    run_eager,
)
from exporter.soundness.checks.execution_context import LAYOUT, LAYOUT_CALLS
from exporter.soundness.footprint import find_suspect_line

CHECK = "values"
_MEND = (
    "compute with tensors only: torch.where instead of a branch, no values kept from an earlier run, "
    "no .data of an input"
)


def check(context: CaptureContext) -> list[Finding]:
    """Check that the capture agrees with eager mode at every draw."""
    source = context.source
    with eager_context(source):
        for label, inputs in context.draws:
            mismatch = find_disagreement(context, inputs)
            if not mismatch:
                continue
            divergence = locate_divergence(source, context.draws[0][1], inputs)
            # The first line at which torch itself warned is a hint where nothing else tells more.
            warned = next((line for line, _ in context.trace_warnings if line), "")
            where = divergence.where or warned or find_forward_line(source)
            evidence = "; ".join(filter(None, (f"inputs: {label}: {mismatch}", divergence.what)))
            return [make_refusal(CHECK, "the capture computes something else than the model", where, evidence, _MEND)]
        # A graph of operators relies on the strides that it saw: the file copies inputs first.
        copies_inputs = context.warm.contiguous or source.uses_autograd
        return [*_find_other_operations(context), *([] if copies_inputs else _check_layouts(context))]


def _find_other_operations(context: CaptureContext) -> list[Finding]:
    """Report runs at other values that record other operations or literals, although every number agrees."""
    if context.source.uses_autograd:
        return []
    divergence = locate_divergence(context.source, context.draws[0][1], context.draws[1][1])
    if not divergence.is_recorded:
        what = "two runs could not be compared operation by operation"
        return [Finding(CHECK, what, divergence.where, reason=divergence.what, severity="not run")]
    what, reason = "two runs record different operations", "the capture agrees with eager mode at every draw"
    return [Finding(CHECK, f"{what}: {divergence.what}", divergence.where, reason=reason)] if divergence.what else []


def _check_layouts(context: CaptureContext) -> list[Finding]:
    """Check other memory layouts, where the file passes inputs to the capture without a copy."""
    first = context.draws[0][1]
    layouts = {"gaps between elements": copy_with_gaps, "dimensions reversed in memory": copy_transposed}
    for label, change in layouts.items():
        mismatch = find_disagreement(context, tuple(map(change, first)), as_they_are=True)
        if mismatch:
            where = find_suspect_line(lambda: run_eager(context.source, first), LAYOUT_CALLS)
            what = "the capture keeps the memory layout of the inputs that it saw"
            evidence = f"inputs with {label}: {mismatch}"
            mend = "no strides of an input in the code: unfold instead of as_strided, or x = x.contiguous()"
            return [make_refusal(LAYOUT, what, where or find_forward_line(context.source), evidence, mend)]
    return []

"""The capture against eager mode at values that warmup did not show it."""

from __future__ import annotations

from exporter.archive.contract import Finding
from exporter.common.forking import isolated
from exporter.common.tensors import spread_out, transposed
from exporter.model.eager.evaluation import forward_line, inference_conditions
from exporter.soundness.check_context import Subject, disagreement, eager, where_runs_part
from exporter.soundness.checks.execution_context import LAYOUT, OF_LAYOUT
from exporter.soundness.footprint import suspect_line

CHECK = "values"


def check(subject: Subject) -> list[Finding]:
    return isolated(_check, subject)


def _check(subject: Subject) -> list[Finding]:
    source = subject.source
    with inference_conditions(source):
        for label, inputs in subject.draws:
            apart = disagreement(subject, inputs)
            if not apart:
                continue
            where, what = where_runs_part(source, subject.draws[0][1], inputs)
            return [
                Finding(
                    CHECK,
                    "the capture computes something else than the model",
                    where or _warned(subject) or forward_line(source),
                    severity="unsound",
                    evidence="; ".join(filter(None, (f"inputs: {label}: {apart}", what))),
                    mend="compute with tensors only: torch.where instead of a branch, no values kept from an earlier "
                    "run, no .data of an input",
                )
            ]
        # A graph of operators goes by the strides that it saw: the file copies inputs first.
        copied = subject.warm.contiguous or source.differentiates
        return [*_other_operations(subject), *([] if copied else _layouts(subject))]


def _other_operations(subject: Subject) -> list[Finding]:
    """Runs at other values that record other operations, or other literals, although every number agrees."""
    if subject.source.differentiates:
        return []
    where, what = where_runs_part(subject.source, subject.draws[0][1], subject.draws[1][1])
    if not what:
        return []
    reason = "the capture agrees with eager mode at every draw"
    return [Finding(CHECK, f"two runs record different operations: {what}", where, reason=reason)]


def _layouts(subject: Subject) -> list[Finding]:
    """Where the file hands inputs to the capture as they lie in memory, it must take them so."""
    first = subject.draws[0][1]
    for label, change in (("gaps between elements", spread_out), ("dimensions reversed in memory", transposed)):
        apart = disagreement(subject, tuple(map(change, first)), as_they_are=True)
        if apart:
            return [
                Finding(
                    LAYOUT,
                    "the capture keeps the layout in memory of the inputs that it saw",
                    suspect_line(lambda: eager(subject.source, first), OF_LAYOUT) or forward_line(subject.source),
                    severity="unsound",
                    evidence=f"inputs with {label}: {apart}",
                    mend="no strides of an input in the code: unfold instead of as_strided, or x = x.contiguous()",
                )
            ]
    return []


def _warned(subject: Subject) -> str:
    """The first line at which torch itself warned: a lead where nothing else says more."""
    return next((where for where, _ in subject.warned if where), "")

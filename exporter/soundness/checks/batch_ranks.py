"""Other numbers of batch dimensions. The file flattens them to the one that was traced, as independent elements.

A model that means something else by them because its code asks for the rank is refused. One that counts dimensions
from the front (``x.sum(1)``) means nothing by them, which is a limit and not a loss.
"""

from __future__ import annotations

import linecache
import re

from exporter.archive.contract import Finding
from exporter.model.eager.evaluation import inference_conditions
from exporter.model.source import Inputs, Source
from exporter.soundness.check_context import Eager, eager, unlike
from exporter.soundness.execution_paths import Step, parting, raises_inside

CHECK = "batch dimensions"


def check(eager_mode: Eager) -> list[Finding]:
    source = eager_mode.source
    return eager_mode.room(_check, eager_mode.inputs) if source.batch_ndim and source.inputs else []


def _check(source: Source, inputs: Inputs) -> list[Finding]:
    with inference_conditions(source):
        flat = eager(source, inputs)
        if isinstance(flat, str):
            return []
        rows = inputs[0].shape[0]
        shapes = {"no batch dimension": (), "two batch dimensions": (rows, 1)}
        for label, lead in shapes.items():
            given = tuple(t[0] if not lead else t.reshape(*lead, *t.shape[1:]) for t in inputs)
            got = eager(source, given)
            if isinstance(got, str) or list(got) != list(flat):
                continue
            for name, value in flat.items():
                if value.shape[:1] != (rows,):
                    continue
                wanted = value[0] if not lead else value.reshape(*lead, *value.shape[1:])
                if got[name].shape != wanted.shape or not unlike(got[name], wanted):
                    continue
                step = parting(lambda: eager(source, inputs), lambda given=given: eager(source, given))
                if step and _asks_for_rank(step) and not raises_inside(lambda given=given: eager(source, given)):
                    return [
                        Finding(
                            CHECK,
                            f"the model computes something else for {label}",
                            step.where,
                            severity="unsound",
                            evidence=f"output {name!r}: {unlike(got[name], wanted)} for the same element in a batch",
                            mend="compute the same for any number of batch dimensions: x.sum(-1), x[..., 0]",
                        )
                    ]
    return []


def _asks_for_rank(step: Step) -> bool:
    """Whether a line branches on a number of dimensions. Other branches part for other reasons: a dimension that is
    counted from the front is another one now."""
    line = linecache.getline(step.code.co_filename, step.line)
    return step.branches and bool(re.search(r"\.dim\(|\bndim|ndimension|len\(.*(shape|size)|\brank\b", line))

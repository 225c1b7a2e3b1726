"""Other numbers of batch dimensions. The file flattens them to the one that was traced, as independent elements.

A model that means something else by them because its code asks for the rank is refused. One that counts dimensions
from the front (``x.sum(1)``) means nothing by them, which is a limit and not a loss.
"""

from __future__ import annotations

from exporter.contract import Finding
from exporter.eager import inference_conditions
from exporter.soundness.dependence import SIZE
from exporter.soundness.paths import parting
from exporter.soundness.recording import record
from exporter.soundness.subject import Eager, eager, unlike
from exporter.sources.source import Inputs, Source

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
                # A loop over a dimension that is another one now is no branch on the rank, and one on data is another
                # check's.
                if step and step.branches and step.where not in _data_lines(source, inputs):
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


def _data_lines(source: Source, inputs: Inputs) -> set[str]:
    recording = record(source, inputs)
    reads = zip(recording.reads, recording.origins, strict=True)
    return {read.where for read, labels in reads if any(not label.startswith(SIZE) for label in labels)}

"""Inputs that nothing depends on, and outputs that depend on no input: said, not refused."""

from __future__ import annotations

from exporter.archive.contract import Finding
from exporter.model.eager.evaluation import inference_conditions
from exporter.model.source import Inputs, Source
from exporter.soundness.check_context import Eager
from exporter.soundness.run_recording import record

INPUT, OUTPUT = "unused input", "constant output"


def check(eager_mode: Eager) -> list[Finding]:
    return eager_mode.room(_check, eager_mode.inputs)


def _check(source: Source, inputs: Inputs) -> list[Finding]:
    names = [spec.name for spec in source.inputs]
    with inference_conditions(source):
        run = record(source, inputs)
    if run.graph is None:
        return []
    needs = run.labels
    used = frozenset().union(*needs.values()) if needs else frozenset()
    found = [
        Finding(INPUT, f"input {name!r} reaches no output", reason="the model takes it and does not use its values")
        for name in names
        if name not in used
    ]
    found += [
        Finding(OUTPUT, f"output {name!r} depends on no input's values", reason="it is a constant of the model")
        for name, labels in needs.items()
        if not labels & set(names)
    ]
    return found

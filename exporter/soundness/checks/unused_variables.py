"""Report of inputs that nothing depends on, and outputs that depend on no input: these are not refused."""

from __future__ import annotations

from exporter.archive.contract import Finding
from exporter.model.source import Inputs, Source
from exporter.soundness.check_context import EagerContext
from exporter.soundness.run_recording import RunRecording, record_run

CHECK, OUTPUT = "unused input", "constant output"


def check(context: EagerContext) -> list[Finding]:
    """Report unused inputs and constant outputs."""
    return context.room(_check, context.inputs)


def _check(source: Source, inputs: Inputs) -> list[Finding]:
    return list_findings(source, record_run(source, inputs))


def list_findings(source: Source, run: RunRecording) -> list[Finding]:
    """List what this run did not use, and what does not depend on anything."""
    names = [spec.name for spec in source.inputs]
    if run.graph is None:
        return []
    used = frozenset().union(*run.labels.values())
    unused, constant = [n for n in names if n not in used], [n for n, la in run.labels.items() if not la & set(names)]
    reason = "the model takes it and does not use its values"
    findings = [Finding(CHECK, f"input {name!r} reaches no output", reason=reason) for name in unused]
    reason = "it is a constant of the model"
    findings += [Finding(OUTPUT, f"output {name!r} depends on no input's values", reason=reason) for name in constant]
    return findings

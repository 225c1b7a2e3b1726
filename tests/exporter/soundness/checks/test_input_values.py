"""Two runs of a model operation by operation: what they share, what they do not, and that one was not recorded."""

from __future__ import annotations

import pytest
from gate_specimens import findings_of, model_of, source_for

from exporter.soundness import check_context
from exporter.soundness.run_recording import RunRecording


def scale(self, x):
    return x * self.scale


def scale_by_sign(self, x):
    """Both branches give the same numbers."""
    if x.sum() > 0:
        return x * self.scale
    return self.scale * x


@pytest.mark.parametrize(("function", "said"), [(scale, []), (scale_by_sign, ["two runs record different operations"])])
def test_operations_of_two_runs(function, said):
    source = source_for(model_of(function))
    findings = [f for f in findings_of(source, "data read:planted", "batch size:planted") if f.check == "values"]
    assert [f.what.partition(":")[0] for f in findings] == said


def test_a_run_that_is_not_recorded_is_not_called_sound(monkeypatch):
    failure = RunRecording({}, (), (), None, {}, "RuntimeError: no record", "model.py:3")
    monkeypatch.setattr(check_context, "record_run", lambda *_: failure)
    (finding,) = [f for f in findings_of(source_for(model_of(scale))) if f.check == "values"]
    assert (finding.severity, finding.reason, finding.where) == ("not run", "RuntimeError: no record", "model.py:3")

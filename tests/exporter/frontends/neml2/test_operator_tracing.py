"""Traces of NEML2's operators while a driver's history is recorded."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
import torch
from decay_input import format_decay

from exporter.frontends.model_request import ModelRequest
from exporter.frontends.neml2 import input_file, operator_tracing
from exporter.frontends.neml2.operator_tracing import CALLS_BEFORE_TRACE, CALLS_BETWEEN_COMPARISONS, TracedOperator
from exporter.model.source import Source

pytestmark = pytest.mark.usefixtures("neml2")
X = torch.linspace(-1, 1, 5, dtype=torch.float64)


class Law:
    """A law with a branch on its data; it counts the calls that Python runs."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        self.calls += 1
        return (x * 2,) if float(x.max()) < 5 else (x * 3,)


def test_an_operator_is_traced_at_a_later_call_and_compared_from_time_to_time():
    law, operator = Law(), TracedOperator()
    for k in range(200):
        (result,) = operator.run(law, (X + k / 100,))
        assert torch.equal(result, 2 * (X + k / 100))
    # One call is traced, and eager mode is asked at the first call of the trace, the second, the fourth and so on.
    assert law.calls == CALLS_BEFORE_TRACE + 2 + 8
    assert operator.trace is not None
    assert not operator.is_wrong


def test_a_trace_has_no_operation_that_is_the_same_in_every_call():
    def chain(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        seed = torch.eye(5, dtype=torch.float64)
        for _ in range(10):
            seed = 0.5 * seed + seed @ seed
        return (seed @ x + torch.sin(x) * torch.sin(x),)

    operator = TracedOperator()
    for _ in range(CALLS_BEFORE_TRACE + 1):
        operator.run(chain, (X,))
    operations = [node.kind() for node in operator.trace.graph.nodes() if node.kind() != "prim::Constant"]
    assert operations.count("aten::matmul") == operations.count("aten::sin") == 1
    assert torch.equal(operator.run(chain, (X / 3,))[0], chain(X / 3)[0])


def test_a_trace_that_computes_something_else_is_given_up():
    law, operator = Law(), TracedOperator()
    for _ in range(CALLS_BEFORE_TRACE + 1):
        operator.run(law, (X,))
    assert operator.trace is not None
    for _ in range(4):
        operator.run(law, (X,))
    results = [operator.run(law, (X + 10,))[0] for _ in range(CALLS_BETWEEN_COMPARISONS)]
    # The branch of the trace, and then eager mode for good.
    assert torch.equal(results[0], 2 * (X + 10))
    assert torch.equal(results[-1], 3 * (X + 10))
    assert operator.is_wrong
    for _ in range(2 * CALLS_BEFORE_TRACE):
        assert torch.equal(operator.run(law, (X,))[0], 2 * X)
    assert operator.trace is None


def test_the_last_call_is_compared_at_the_end():
    law, operator = Law(), TracedOperator()
    for _ in range(CALLS_BEFORE_TRACE + 1 + 9):
        operator.run(law, (X,))
    operator.run(law, (X + 10,))
    assert not operator.is_wrong
    operator.finish()
    assert operator.is_wrong


def test_another_operator_of_the_same_layout_is_seen_by_the_comparison():
    operator = TracedOperator()
    for _ in range(CALLS_BEFORE_TRACE + 1):
        operator.run(Law(), (X,))
    results = [operator.run(lambda x: (x * 7,), (X,))[0] for _ in range(CALLS_BETWEEN_COMPARISONS)]
    assert torch.equal(results[-1], 7 * X)
    assert operator.is_wrong


def test_an_operator_without_a_trace_stays_in_eager_mode():
    def refuse(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if torch._C._get_tracing_state() is not None:
            raise RuntimeError("not traced")
        return (x + 1,)

    operator = TracedOperator()
    for _ in range(2 * CALLS_BEFORE_TRACE):
        assert torch.equal(operator.run(refuse, (X,))[0], X + 1)
    assert not operator.is_traceable
    assert not operator.is_wrong


def load(tmp_path: Path) -> Source:
    path = tmp_path / "decay.i"
    path.write_text(format_decay(6.0, 61))
    return input_file.load(ModelRequest(str(path)), "model", None)


def assert_same_history(source: Source, expected: Source, tolerance: float) -> None:
    assert len(source.calls) == len(expected.calls) == 60
    for call, expected_call in zip(source.calls, expected.calls, strict=True):
        for value, other in zip(call, expected_call, strict=True):
            torch.testing.assert_close(value, other, rtol=tolerance, atol=0.0)


@pytest.fixture
def eager(tmp_path, monkeypatch) -> Source:
    with monkeypatch.context() as patch:
        patch.setattr(TracedOperator, "_make_trace", lambda self, law, inputs: None)
        return load(tmp_path)


def test_a_history_is_the_same_with_and_without_traces(tmp_path, eager, monkeypatch):
    from neml2.es.implicit import RHS, Jacobian

    forwards = RHS.forward, Jacobian.forward
    traced = []
    make_trace = TracedOperator._make_trace

    def count(self, law, inputs):
        make_trace(self, law, inputs)
        traced.append(self)

    monkeypatch.setattr(TracedOperator, "_make_trace", count)
    source = load(tmp_path)
    assert [operator.is_wrong for operator in traced] == [False] * len(traced)
    assert any(operator.trace is not None for operator in traced)
    assert (RHS.forward, Jacobian.forward) == forwards
    assert_same_history(source, eager, 1e-14)


def test_a_trace_that_ends_wrong_is_recorded_anew(tmp_path, monkeypatch):
    """Nothing but the comparison at the end sees its last calls."""
    make_trace = TracedOperator._make_trace
    given_up = []

    def plant(self, law, inputs):
        make_trace(self, law, inputs)
        if self.trace is not None:
            trace = self.trace
            self.trace = lambda *values: tuple(1.5 * output for output in trace(*values))
            # None before the end.
            self._compared_at = 10**9
            given_up.append(self)

    monkeypatch.setattr(TracedOperator, "_make_trace", plant)
    source = load(tmp_path)
    assert any(operator.is_wrong for operator in given_up)
    assert len(source.calls) == 60


def test_a_history_that_followed_a_wrong_trace_is_recorded_anew(tmp_path, eager, monkeypatch):
    make_trace = TracedOperator._make_trace
    given_up = []

    def plant(self, law, inputs):
        make_trace(self, law, inputs)
        if self.trace is not None:
            trace = self.trace
            self.trace = lambda *values: tuple(1.5 * output for output in trace(*values))
            given_up.append(self)

    monkeypatch.setattr(TracedOperator, "_make_trace", plant)
    source = load(tmp_path)
    assert any(operator.is_wrong for operator in given_up)
    assert_same_history(source, eager, 0.0)


def test_the_operators_are_restored_after_a_failure():
    from neml2.es.implicit import RHS

    forward = RHS.forward
    with contextlib.suppress(ZeroDivisionError), operator_tracing.trace_operators():
        assert RHS.forward is not forward
        raise ZeroDivisionError
    assert RHS.forward is forward

"""Traces of NEML2's operators while a driver's history is recorded."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
import torch

from exporter.frontends.neml2 import input_file, operator_tracing
from exporter.frontends.neml2.operator_tracing import CALLS_BEFORE_TRACE, CALLS_BETWEEN_COMPARISONS, TracedFunction

pytestmark = pytest.mark.usefixtures("neml2")
# Its driver takes 60 steps, in each of which Newton's method evaluates residual and Jacobian.
DRIVER = """
[Tensors]
  [times]
    type = Python
    expr = 'Scalar(torch.linspace(0.0, 6.0, 61).reshape(61, 1))'
  []
[]
[Drivers]
  [driver]
    type = TransientDriver
    model = 'model'
    prescribed_time = 'times'
    ic_Scalar_names = 'x'
    ic_Scalar_values = '1'
  []
[]
"""
X = torch.linspace(-1, 1, 5, dtype=torch.float64)


class Law:
    """A law with a branch on its data; it counts the calls that Python runs."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        self.calls += 1
        return (x * 2,) if float(x.max()) < 5 else (x * 3,)


def test_a_function_is_traced_at_a_later_call_and_compared_from_time_to_time():
    law = Law()
    traced = TracedFunction(law)
    for k in range(200):
        (result,) = traced(X + k / 100)
        assert torch.equal(result, 2 * (X + k / 100))
    compared = (200 - CALLS_BEFORE_TRACE) // CALLS_BETWEEN_COMPARISONS
    # One call is traced.
    assert abs(law.calls - (CALLS_BEFORE_TRACE + 2 + compared)) <= 1
    assert traced.trace is not None


def test_a_trace_that_computes_something_else_is_given_up():
    law = Law()
    traced = TracedFunction(law)
    for _ in range(CALLS_BEFORE_TRACE + 1):
        traced(X)
    assert traced.trace is not None
    results = [traced(X + 10)[0] for _ in range(CALLS_BETWEEN_COMPARISONS)]
    # The branch of the trace, and then eager mode for good.
    assert torch.equal(results[0], 2 * (X + 10))
    assert torch.equal(results[-1], 3 * (X + 10))
    assert traced.trace is None
    for _ in range(2 * CALLS_BEFORE_TRACE):
        assert torch.equal(traced(X)[0], 2 * X)
    assert traced.trace is None


def test_a_function_without_a_trace_stays_in_eager_mode():
    def refuse(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if torch._C._get_tracing_state() is not None:
            raise RuntimeError("not traced")
        return (x + 1,)

    traced = TracedFunction(refuse)
    for _ in range(2 * CALLS_BEFORE_TRACE):
        assert torch.equal(traced(X)[0], X + 1)
    assert not traced.is_traceable


def test_a_history_is_the_same_with_and_without_traces(tmp_path, monkeypatch):
    from neml2.es.implicit import RHS, Jacobian

    path = tmp_path / "decay.i"
    path.write_text(Path(input_file.__file__).with_name("abi_probe.i").read_text() + DRIVER)
    forwards = RHS.forward, Jacobian.forward
    traced_functions = []
    original = TracedFunction._make_trace
    monkeypatch.setattr(
        TracedFunction, "_make_trace", lambda self, inputs: (original(self, inputs), traced_functions.append(self))
    )
    source = input_file.load(path, "model", None)
    assert any(function.trace is not None for function in traced_functions)
    assert (RHS.forward, Jacobian.forward) == forwards
    monkeypatch.setattr(operator_tracing, "CALLS_BEFORE_TRACE", 10**9)
    traced_functions.clear()
    eager = input_file.load(path, "model", None)
    assert not traced_functions
    assert len(source.calls) == len(eager.calls) == 60
    for call, expected in zip(source.calls, eager.calls, strict=True):
        for value, other in zip(call, expected, strict=True):
            assert torch.allclose(value, other, rtol=1e-12, atol=1e-14)


def test_the_operators_are_restored_after_a_failure():
    from neml2.es.implicit import RHS

    forward = RHS.forward
    with contextlib.suppress(ZeroDivisionError), operator_tracing.trace_operators():
        assert RHS.forward is not forward
        raise ZeroDivisionError
    assert RHS.forward is forward

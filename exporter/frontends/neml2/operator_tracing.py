"""Operators of NEML2's Newton solver, run as traces while a driver's history is recorded.

A history evaluates residual and Jacobian hundreds of times, each some thousand small operations in Python. The recorded
calls are inputs to export with, and no reference: all that is compared is run in eager mode again. Where a trace was
wrong, the history may have followed it, and is recorded anew."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any

import torch

from exporter.common.tensors import all_close
from exporter.common.torch_hooks import ignore_deprecations
from exporter.common.torch_internals import (
    TracerWarning,
    create_function,
    inline_calls,
    merge_subexpressions,
    optimized_execution,
    propagate_constants,
    remove_dead_code,
)

# A trace costs some thirty calls in eager mode: a history of a few calls does without.
CALLS_BEFORE_TRACE = 4
# Eager mode is asked too at the first call of a trace, the second, the fourth and so on, and every so many calls.
CALLS_BETWEEN_COMPARISONS = 128

Tensors = tuple[torch.Tensor, ...]


class TracedOperator:
    """An operator that is traced after so many calls, and compared with eager mode from time to time.

    ``is_wrong`` says that its trace has computed something else, and perhaps in calls before; it is given up then."""

    def __init__(self, calls_before_trace: int = CALLS_BEFORE_TRACE) -> None:
        self.trace: Any = None
        self._calls_before_trace = calls_before_trace
        # Of eager mode, and then of the trace.
        self._calls = 0
        self._compared_at = 1
        self._last_call: tuple[Callable[..., Tensors], Tensors, Tensors] | None = None
        self.is_traceable, self.is_wrong = True, False

    def run(self, eager: Callable[..., Tensors], inputs: Tensors) -> Tensors:
        """Return what ``eager`` computes at these inputs."""
        self._calls += 1
        if self.trace is None:
            if self.is_traceable and self._calls > self._calls_before_trace:
                self._make_trace(eager, inputs)
                self._calls = 0
            return eager(*inputs)
        with optimized_execution(False):
            outputs = self.trace(*inputs)
        self._last_call = eager, inputs, outputs
        if self._calls >= self._compared_at:
            self._compared_at += min(self._compared_at, CALLS_BETWEEN_COMPARISONS)
            return self._compare_last_call()
        return outputs

    def finish(self) -> None:
        """Compare the last call too: what was computed since the comparison before may be wrong."""
        if self.trace is None or self._last_call is None:
            return
        try:
            self._compare_last_call()
        except Exception:
            self.is_wrong = True

    def _compare_last_call(self) -> Tensors:
        assert self._last_call is not None
        eager, inputs, outputs = self._last_call
        expected = eager(*inputs)
        if all(map(all_close, outputs, expected)):
            return outputs
        self.trace, self.is_traceable, self.is_wrong = None, False, True
        return expected

    def _make_trace(self, eager: Callable[..., Tensors], inputs: Tensors) -> None:
        import neml2

        # A function, not a module: torch names the methods of a module in a time that grows with the cube of its calls.
        def run(*values: torch.Tensor) -> Tensors:
            return tuple(eager(*values))

        with warnings.catch_warnings(), ignore_deprecations():
            warnings.simplefilter("ignore", TracerWarning)
            try:
                # The library forbids it inside a forward, and so what torch imports for a trace.
                with neml2.allow_autograd(reason="torchferry traces an operator of the Newton solver"):
                    self.trace = _simplify(torch.jit.trace(run, inputs, check_trace=False))
            except Exception:
                self.is_traceable = False


def _simplify(trace: Any) -> Any:
    """Return a trace without what is the same in every call: a chain rule carries identities through most of it."""
    graph = trace.graph
    inline_calls(graph)
    propagate_constants(graph)
    merge_subexpressions(graph)
    remove_dead_code(graph)
    return create_function("run", graph)


@contextlib.contextmanager
def trace_operators(calls_before_trace: int = CALLS_BEFORE_TRACE) -> Iterator[Mapping[Hashable, TracedOperator]]:
    """Run residuals and Jacobians of NEML2's systems as traces after so many calls, inside this context.

    An operator that cannot be traced stays in eager mode."""
    from neml2.es.implicit import RHS, Jacobian

    operators: dict[Hashable, TracedOperator] = {}
    kinds: tuple[Any, ...] = (RHS, Jacobian)
    originals = {kind: kind.forward for kind in kinds}
    for kind, original in originals.items():
        kind.forward = _make_forward(original, operators, calls_before_trace)
    try:
        yield operators
        for operator in operators.values():
            operator.finish()
    finally:
        for kind, original in originals.items():
            kind.forward = original


def _make_forward(
    eager: Callable[..., Tensors], operators: dict[Hashable, TracedOperator], calls_before_trace: int
) -> Callable[..., Tensors]:
    def forward(module: Any, *inputs: torch.Tensor) -> Tensors:
        # The solver makes new modules for each solve.
        groups = (module.unknown_groups, module.given_groups, module.residual_groups, module.param_names)
        layout = (*groups, module.dyn_ndim, module.sub_batch_shapes)
        key = (eager, module.model, str(layout), *((t.shape, t.dtype, t.device) for t in inputs))
        return operators.setdefault(key, TracedOperator(calls_before_trace)).run(
            functools.partial(eager, module), inputs
        )

    return forward

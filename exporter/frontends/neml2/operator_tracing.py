"""Operators of NEML2's Newton solver, run as traces while a driver's history is recorded.

A history evaluates residual and Jacobian hundreds of times, each some thousand small operations in Python. The recorded
calls are inputs to export with, and no reference: all that is compared is run in eager mode again."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import torch
from torch.jit._fuser import optimized_execution
from torch.jit._trace import TracerWarning

from exporter.common.tensors import all_close
from exporter.common.torch_hooks import ignore_deprecations
from exporter.frontends.neml2.driver_recording import CALLS_OF_PART

# A trace costs some thirty calls in eager mode. It runs no hooks of modules: the calls of a part are recorded before.
CALLS_BEFORE_TRACE = CALLS_OF_PART
# Every so many calls of a trace, eager mode is asked too.
CALLS_BETWEEN_COMPARISONS = 16

Tensors = tuple[torch.Tensor, ...]


@contextlib.contextmanager
def trace_operators() -> Iterator[None]:
    """Run residuals and Jacobians of NEML2's systems as traces after some calls, inside this context.

    An operator that cannot be traced stays in eager mode, and so does one from the first comparison on in which its
    trace computes something else."""
    from neml2.es.implicit import RHS, Jacobian

    functions: dict[Hashable, TracedFunction] = {}
    kinds: tuple[Any, ...] = (RHS, Jacobian)
    originals = {kind: kind.forward for kind in kinds}
    for kind, original in originals.items():
        kind.forward = _make_forward(original, functions)
    try:
        yield
    finally:
        for kind, original in originals.items():
            kind.forward = original


class TracedFunction:
    """A function of tensors that is traced at a later call, and compared with itself from time to time."""

    def __init__(self, function: Callable[..., Tensors]) -> None:
        self.function = function
        self.trace: Any = None
        self.calls, self.is_traceable = 0, True

    def __call__(self, *inputs: torch.Tensor) -> Tensors:
        self.calls += 1
        if self.trace is None:
            if self.is_traceable and self.calls > CALLS_BEFORE_TRACE:
                self._make_trace(inputs)
            return self.function(*inputs)
        with optimized_execution(False):
            outputs = self.trace(*inputs)
        if self.calls % CALLS_BETWEEN_COMPARISONS == 0:
            expected = self.function(*inputs)
            if not all(map(all_close, outputs, expected)):
                self.trace, self.is_traceable = None, False
                return expected
        return outputs

    def _make_trace(self, inputs: Tensors) -> None:
        import neml2

        # A function, not a module: torch names the methods of a module in a time that grows with the cube of its calls.
        def run(*values: torch.Tensor) -> Tensors:
            return tuple(self.function(*values))

        with warnings.catch_warnings(), ignore_deprecations():
            warnings.simplefilter("ignore", TracerWarning)
            try:
                # The library forbids it inside a forward, and so what torch imports for a trace.
                with neml2.allow_autograd(reason="torchferry traces an operator of the Newton solver"):
                    self.trace = torch.jit.trace(run, inputs, check_trace=False)
            except Exception:
                self.is_traceable = False


def _make_forward(eager: Callable[..., Tensors], functions: dict[Hashable, TracedFunction]) -> Callable[..., Tensors]:
    def forward(operator: Any, *inputs: torch.Tensor) -> Tensors:
        # The solver makes new operators for each solve.
        groups = (operator.unknown_groups, operator.given_groups, operator.residual_groups, operator.param_names)
        layout = (*groups, operator.dyn_ndim, operator.sub_batch_shapes)
        key = (eager, operator.model, str(layout), *((t.shape, t.dtype, t.device) for t in inputs))
        if key not in functions:
            functions[key] = TracedFunction(functools.partial(eager, operator))
        return functions[key](*inputs)

    return forward

"""Detection of models that call autograd themselves, which only a run can tell."""

from __future__ import annotations

import dataclasses
import traceback
from typing import Any

import torch

from exporter.capture import fx_tracing
from exporter.common.errors import TorchferryError
from exporter.common.forking import ForkFailedError, run_in_fork
from exporter.common.torch_hooks import Entry, patch_autograd_engine, patch_forward
from exporter.model.compiled_model import CompiledModel, list_compiled, takes_gradients
from exporter.model.eager.warmup import run_first
from exporter.model.implicit.newton_solver import NewtonSolver, find_solvers
from exporter.model.source import Source

# A model whose calls take minutes is exported, too.
SECONDS = 3600.0


class _BackwardRequested(Exception):
    """Raised when the autograd engine is called for a backward pass."""


def detect_inner_autograd(source: Source, seed: int) -> Source:
    """Mark the source if a call enters torch's autograd engine for a backward pass. It runs in its own process."""
    if source.uses_autograd:
        # It was found before, or made so.
        uses_autograd = True
    elif source.origin.kind == "neml2":
        # A source library has its own chain rule.
        return source
    elif isinstance(source.parameter_module, CompiledModel):
        uses_autograd = takes_gradients(source.parameter_module)
    elif any(takes_gradients(part) for part in list_compiled(source.parameter_module)):
        uses_autograd = True
    else:
        try:
            uses_autograd = run_in_fork(_requests_backward, source, seed, seconds=SECONDS)
        except (ForkFailedError, TorchferryError):
            # A failure here occurs again in a stage that reports it.
            return source
    if uses_autograd:
        # Load what torch imports for its first graph before processes are forked from here.
        fx_tracing.trace_to_fx(lambda x: torch.autograd.grad(x.requires_grad_().sin().sum(), x), (torch.ones(3),))
    return dataclasses.replace(source, uses_autograd=uses_autograd)


def _requests_backward(source: Source, seed: int) -> bool:
    requests: list[bool] = []
    active_solves: list[bool] = []

    def intercept(original: Entry) -> Entry:
        def entry(*args: Any, **kwargs: Any) -> Any:
            if active_solves:
                return original(*args, **kwargs)
            requests.append(True)
            raise _BackwardRequested

        return entry

    def wrap_solver(loop: NewtonSolver) -> Entry:
        forward = loop.forward

        def run(*args: Any) -> Any:
            # How the Jacobian of a residual is computed is internal to the solver.
            active_solves.append(True)
            result = forward(*args)
            active_solves.pop()
            return result

        return run

    patched = patch_forward({loop: wrap_solver(loop) for loop in find_solvers(source.parameter_module).values()})
    with patched, patch_autograd_engine(intercept):
        try:
            run_first(dataclasses.replace(source, uses_autograd=True), seed)
        except Exception as error:
            return bool(requests) or (not active_solves and _is_raised_by_autograd(error))
    return bool(requests)


def _is_raised_by_autograd(error: BaseException | None) -> bool:
    """Return whether autograd's own functions raised the error before the engine was reached."""
    while error is not None:
        frames = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
        if any(c.co_filename == torch.autograd.__file__ and c.co_name in ("grad", "backward") for c in frames):
            return True
        error = error.__cause__
    return False

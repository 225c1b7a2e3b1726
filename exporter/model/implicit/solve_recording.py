"""The Newton solves of a run in eager mode, recorded."""

from __future__ import annotations

import torch

from exporter.common.torch_hooks import patch_forward
from exporter.model.eager.evaluation import evaluate
from exporter.model.implicit.newton_solver import NewtonSolver, find_solvers
from exporter.model.source import Inputs, Source

# The arguments of one solve: the first guess, and the tensors that are held fixed.
SolverArguments = tuple[torch.Tensor, list[torch.Tensor]]
SolverCall = tuple[NewtonSolver, SolverArguments, tuple[torch.Tensor, ...]]


def record_solver_calls(source: Source, inputs: Inputs) -> list[SolverCall]:
    """Record the solves of one eager run, in order: the solver, its arguments and its results, with tangents."""
    solver_calls: list[SolverCall] = []

    def wrap_forward(loop: NewtonSolver):
        forward = loop.forward

        def run(u: torch.Tensor, fixed: list[torch.Tensor], tangents: bool = False) -> tuple[torch.Tensor, ...]:
            arguments = u.detach(), [t.detach() for t in fixed]
            result = forward(u, fixed, True)
            solver_calls.append((loop, arguments, tuple(t.detach() for t in result)))
            return result

        return run

    with patch_forward({loop: wrap_forward(loop) for loop in find_solvers(source.parameter_module).values()}):
        evaluate(source, inputs)
    return solver_calls

"""The Newton solves of a run in eager mode, recorded."""

from __future__ import annotations

import torch

from exporter.common.torch_hooks import called_instead
from exporter.model.eager.evaluation import evaluate
from exporter.model.implicit.newton_solver import Newton, loops
from exporter.model.source import Inputs, Source

# What one solve takes: the first guess, and what is held.
Taken = tuple[torch.Tensor, list[torch.Tensor]]


def calls(source: Source, inputs: Inputs) -> list[tuple[Newton, Taken, tuple[torch.Tensor, ...]]]:
    """The solves of one run in eager mode, in their order: the loop, what it took and what it gave, with tangents."""
    found: list[tuple[Newton, Taken, tuple[torch.Tensor, ...]]] = []

    def noting(loop: Newton):
        forward = loop.forward

        def run(u: torch.Tensor, held: list[torch.Tensor], tangents: bool = False) -> tuple[torch.Tensor, ...]:
            given = u.detach(), [t.detach() for t in held]
            result = forward(u, held, True)
            found.append((loop, given, tuple(t.detach() for t in result)))
            return result

        return run

    with called_instead({loop: noting(loop) for loop in loops(source.named).values()}):
        evaluate(source, inputs)
    return found

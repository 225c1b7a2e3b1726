"""Stiff problems with published solutions: a case is one right-hand side, and the digits that a solver reaches."""

from __future__ import annotations

import torch

from exams.examination import Case
from exams.ode_problems import PROBLEMS
from exams.pipelines import DIGITS, FILES, JACOBIAN
from exams.samples import FRESH_ROWS, ROWS, Sample, Tensors


def list_cases() -> list[str]:
    """List the problems."""
    return list(PROBLEMS)


def make_case(name: str, most: int) -> Case:
    """Make a case by its name: one sample, whatever ``most`` is."""
    del most
    problem = PROBLEMS[name]

    def draw(seed: int, rows: int) -> Tensors:
        generator = torch.Generator().manual_seed(seed)
        return (torch.rand((rows, len(problem.start)), generator=generator, dtype=torch.float64),)

    fresh = tuple(draw(seed, rows) for seed, rows in enumerate(FRESH_ROWS, 1))
    return Case([Sample(problem.rate, draw(0, ROWS), fresh, ROWS, problem=problem)], (*FILES, JACOBIAN, DIGITS))

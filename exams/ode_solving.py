"""The digits that SciPy's Radau reaches of a published solution with a file's rate and Jacobian."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from scipy.integrate import solve_ivp

from exams.judgement import CLOSE, explain_difference
from exams.ode_problems import OdeProblem

# The relative tolerance of the solver, and the digits that it must reach with it.
TOLERANCE, ENOUGH = 1e-7, 6.0
Function = Callable[[Any], Any]


def explain_solution(problem: OdeProblem | None, rate: Function, jacobian: Function) -> str:
    """Return why a rate and its Jacobian are not those of a problem; empty if they are.

    A solver reaches its digits with a Jacobian that is half wrong, only later: it is compared by itself.

    Args:
        problem: The problem, of which the sample must have one.
        rate: The rate of a state of shape ``(n,)``.
        jacobian: Its derivatives, of shape ``(n, n)``.

    Returns:
        The reason, or an empty text.
    """
    if problem is None:
        return "it is no problem for a solver"
    for state in (problem.start, problem.solution):
        y = torch.tensor(state, dtype=torch.float64)
        text = explain_difference(torch.func.jacrev(problem.rate)(y), torch.as_tensor(jacobian(y.numpy())), CLOSE)
        if text:
            return f"the Jacobian is {text}"
    digits = count_digits(problem, rate, jacobian)
    return "" if digits >= ENOUGH else f"{digits:.1f} digits of the published solution"


def count_digits(problem: OdeProblem, rate: Function, jacobian: Function) -> float:
    """Return the digits of the worst number at the end: minus the decimal logarithm of its relative error.

    Args:
        problem: The problem, whose own right-hand side is not used.
        rate: The rate of a state of shape ``(n,)``.
        jacobian: Its derivatives, of shape ``(n, n)``.

    Returns:
        The digits; minus infinity where the solver gives up.
    """
    limits: Any = {"rtol": TOLERANCE, "atol": TOLERANCE * problem.floor}
    span, start = (0.0, problem.end), problem.start
    try:
        result = solve_ivp(lambda t, y: rate(y), span, start, method="Radau", jac=lambda t, y: jacobian(y), **limits)
    except ValueError:
        # What it says of NaN.
        return -np.inf
    if not result.success:
        return -np.inf
    expected = np.array(problem.solution)
    return float(-np.log10(np.max(np.abs(result.y[:, -1] - expected) / np.abs(expected))))

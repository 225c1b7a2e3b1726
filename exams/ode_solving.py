"""The digits that SciPy's Radau reaches of a published solution with a file's rate and Jacobian."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.integrate import solve_ivp

from exams.ode_problems import OdeProblem

# The relative tolerance of the solver, and the digits that it must reach with it.
TOLERANCE, DIGITS = 1e-7, 6.0
Function = Callable[[Any], Any]


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

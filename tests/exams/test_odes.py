"""Published solutions are reached with the right Jacobian and rate, and not with wrong ones."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from exams.cells import VERIFIED
from exams.examination import examine
from exams.ode_problems import PROBLEMS
from exams.ode_solving import count_digits, explain_solution
from exams.suites import odes


def explain(name, rate_factor=1.0, jacobian_factor=1.0):
    problem = PROBLEMS[name]

    def rate(y):
        return rate_factor * problem.rate(torch.tensor(y)[None])[0].numpy()

    def jacobian(y):
        return jacobian_factor * torch.func.jacrev(problem.rate)(torch.tensor(y)).numpy()

    return explain_solution(problem, rate, jacobian)


@pytest.mark.parametrize("name", PROBLEMS)
def test_published_solutions(name):
    assert explain(name) == ""


def test_a_wrong_rate_is_seen():
    assert "digits of the published solution" in explain("HIRES", rate_factor=1.001)
    assert count_digits(PROBLEMS["VDPOL"], lambda y: y * np.nan, lambda y: np.eye(2)) == -np.inf


def test_a_wrong_jacobian_is_seen():
    assert "the Jacobian is off by 1e-01" in explain("HIRES", jacobian_factor=1.1)


@pytest.mark.thorough
def test_a_kernel_into_radau():
    case = odes.make_case("HIRES", 1)
    (cells,) = examine([case], [{}], ["digits"])
    assert cells == {"pt": VERIFIED, "digits": VERIFIED}

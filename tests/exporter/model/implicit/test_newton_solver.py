"""Newton's method on a batch: every element stands alone, and failure is an answer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import settings as of_hypothesis
from hypothesis import strategies as st
from torch import nn

from exporter.common.errors import UsageError
from exporter.model.implicit.newton_solver import (
    CONVERGED,
    NOT_CONVERGED,
    NOT_FINITE,
    SINGULAR,
    SLICE,
    SLICE_ON_DEVICES,
    LineSearch,
    NewtonSolver,
    Settings,
)

F = torch.float64


def arctan(settings: Settings | None = None, on_failure: Any = "nan"):
    """``atan(u) = g``: whole steps diverge from far away. Two unknowns, of which the second is ``u_2 = g``."""

    def residual(u, constants):
        return torch.stack([torch.atan(u[:, 0]) - constants[0], u[:, 1] - constants[0]], -1)

    def jacobian(u, constants):
        rows = torch.zeros(*u.shape, 2, dtype=u.dtype)
        rows[:, 0, 0], rows[:, 1, 1] = 1 / (1 + u[:, 0] ** 2), 1.0
        return rows, residual(u, constants)

    return NewtonSolver(residual, jacobian, nn.Module(), 1, settings or Settings(), on_failure)


@pytest.mark.parametrize(("device", "size"), [("cpu", SLICE), ("meta", SLICE_ON_DEVICES)])
def test_slices_are_longer_on_a_device(device, size, monkeypatch):
    """The device without data stands for a GPU."""
    loop, sizes = arctan(), []

    def solve(u, args, tangents):
        sizes.append(len(u))
        counts = torch.zeros(len(u), dtype=torch.int64, device=u.device)
        return u, u[:0], counts, u[:, 0], counts

    monkeypatch.setattr(loop, "solve", solve)
    loop(torch.zeros(size + 5, 2, dtype=F, device=device), [torch.zeros(size + 5, dtype=F, device=device)])
    assert sizes == [size, 5]


def run(loop, guess, constant):
    u = torch.stack([torch.as_tensor(guess, dtype=F), torch.zeros(len(guess), dtype=F)], -1)
    return loop(u, [torch.as_tensor(constant, dtype=F)], True)


def test_a_solution_with_its_jacobian_iterations_and_status():
    u, matrix, iterations, norm, status, factor = run(arctan(), [0.5, 0.0, 1.0], [0.3, 0.0, 1.2])
    torch.testing.assert_close(u[:, 0], torch.tan(torch.tensor([0.3, 0.0, 1.2], dtype=F)), rtol=1e-14, atol=1e-14)
    # At the solution, and not before the last step.
    torch.testing.assert_close(matrix[:, 0, 0], 1 / (1 + u[:, 0] ** 2), rtol=0, atol=0)
    assert iterations.tolist()[1] == 0
    assert min(iterations.tolist()[::2]) >= 2
    assert status.tolist() == [CONVERGED] * 3
    assert (norm < 1e-8).all()
    assert factor.tolist() == [1.0] * 3


def test_each_kind_of_failure_is_its_own_and_no_other_elements():
    loop = arctan(Settings(max_its=6))
    nan, inf = float("nan"), float("inf")
    guess, wanted = [0.5, 3.0, inf, nan, 1e200], [0.3, 0.0, 0.3, 0.3, 0.3]
    u, _, iterations, _, status, factor = run(loop, guess, wanted)
    # From 3 whole steps diverge; at 1e200 the derivative is zero.
    assert status[0] == CONVERGED
    assert status[1] in (NOT_CONVERGED, NOT_FINITE, SINGULAR)
    assert status[3] == NOT_FINITE
    assert status[4] == SINGULAR
    assert factor.isnan().tolist() == [False, *[True] * 4]
    assert iterations[4] == 0
    alone = run(loop, guess[:1], wanted[:1])[0]
    assert torch.equal(u[:1], alone)


def test_an_iteration_cap_that_is_reached():
    needed = int(run(arctan(), [1.2], [0.3])[2])
    assert run(arctan(Settings(max_its=needed)), [1.2], [0.3])[4] == CONVERGED
    u, _, iterations, _, status, _ = run(arctan(Settings(max_its=needed - 1)), [1.2], [0.3])
    assert (status, iterations) == (NOT_CONVERGED, needed - 1)
    assert torch.isfinite(u).all()


@pytest.mark.parametrize("kind", ["backtracking", "strong wolfe"])
def test_a_line_search_solves_what_whole_steps_do_not(kind):
    assert run(arctan(), [3.0], [0.3])[4] != CONVERGED
    u, *_, status, _ = run(arctan(Settings(line_search=LineSearch(kind))), [3.0], [0.3])
    assert status == CONVERGED
    torch.testing.assert_close(u[0, 0], torch.tan(torch.tensor(0.3, dtype=F)))


def test_a_last_step_that_leads_away_is_not_taken():
    """``u^3 = g`` with a guess near zero: a small residual, and a Jacobian that is nearly singular."""

    def residual(u, constants):
        return u**3 - constants[0][:, None]

    loop = NewtonSolver(
        residual, lambda u, constants: (3 * u[:, :, None] ** 2, residual(u, constants)), nn.Module(), 1, Settings()
    )
    u, _, _, norm, status, _ = loop(torch.full((1, 1), 1e-8, dtype=F), [torch.full((1,), 1e-11, dtype=F)])
    assert (status, u) == (CONVERGED, 1e-8)
    assert norm < 1e-10


def flat(at_solution):
    """``2 u = 2 g``, with another Jacobian at the solution: zero behind a kink, or not a number."""

    def residual(u, constants):
        return 2 * (u - constants[0][:, None])

    def jacobian(u, constants):
        slope = torch.where(u == constants[0][:, None], at_solution, torch.full_like(u, 2.0))
        return slope[:, :, None], residual(u, constants)

    return NewtonSolver(residual, jacobian, nn.Module(), 1, Settings(abs_tol=1e-3))


@pytest.mark.parametrize("at_solution", [0.0, float("nan")])
def test_a_solution_without_a_jacobian_has_that_of_the_iterate_before(at_solution):
    """Else what has converged would be NaN in one method and a number in another."""
    guess, wanted = torch.full((2, 1), 1e-5, dtype=F), torch.tensor([0.0, 1e-5], dtype=F)
    u, matrix, _, _, status, _ = flat(at_solution)(guess, [wanted], True)
    assert status[0] == CONVERGED
    assert (u[0], matrix[0]) == (0.0, 2.0)
    # Where no step leads away from such a point it is a failure, in every method.
    assert status[1] == SINGULAR


def test_raising_says_how_many():
    with pytest.raises(RuntimeError, match="1 of 2 elements"):
        run(arctan(on_failure="raise"), [0.5, float("nan")], [0.3, 0.3])
    assert run(arctan(on_failure="last"), [0.5, 1e200], [0.3, 0.3])[5].tolist() == [1.0, 1.0]


guesses = st.lists(st.floats(-4, 4), min_size=2, max_size=9)


@of_hypothesis(deadline=None)
@given(guesses, st.randoms(use_true_random=False))
def test_permuting_a_batch_permutes_what_is_found(guess, random):
    order = list(range(len(guess)))
    random.shuffle(order)
    wanted = [0.1 * i for i in range(len(guess))]
    item = run(arctan(), guess, wanted)
    other = run(arctan(), [guess[i] for i in order], [wanted[i] for i in order])
    for a, b in zip(item, other, strict=True):
        torch.testing.assert_close(a[order], b, rtol=0, atol=0, equal_nan=True)


@of_hypothesis(deadline=None)
@given(guesses, guesses)
def test_a_batch_behind_another_one(first, second):
    loop = arctan()
    loop.slice = 5
    parts = [run(loop, part, [0.2] * len(part)) for part in (first, second)]
    whole = run(loop, first + second, [0.2] * (len(first) + len(second)))
    for a, b, c in zip(*parts, whole, strict=True):
        torch.testing.assert_close(torch.cat([a, b]), c, rtol=0, atol=0, equal_nan=True)


def test_an_empty_batch():
    assert [t.shape[0] for t in run(arctan(), [], [])] == [0] * 6


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"abs_tol": -1.0}, "abs_tol"),
        ({"abs_tol": float("nan")}, "abs_tol"),
        ({"rel_tol": 1.0}, "rel_tol"),
        ({"abs_tol": 0.0, "rel_tol": 0.0}, "abs_tol and rel_tol"),
        ({"max_its": 0}, "max_its"),
        ({"line_search": LineSearch(trials=0)}, "line search"),
        ({"line_search": LineSearch(cutback=1.0)}, "line search"),
        ({"line_search": LineSearch("exact")}, "line search"),  # pyright: ignore[reportArgumentType]
    ],
)
def test_settings_with_which_nothing_converges(settings, message):
    with pytest.raises(UsageError) as caught:
        Settings(**settings)
    assert message in caught.value.details["where"]


def test_another_word_for_what_fails():
    with pytest.raises(UsageError, match="nan, last, raise"):
        arctan(on_failure="zero")

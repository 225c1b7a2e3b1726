"""Newton's step from the residual's operations against CasADi's Jacobian and LAPACK's solution."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loop_system import SIZE, System

from exporter.backends.c_kernel import newton_step
from exporter.backends.c_kernel.expression_graph import F32, F64, NEWTON, Expr, sqrt, where

NUMBERS = st.lists(st.floats(0.1, 0.9), min_size=2 * SIZE, max_size=2 * SIZE)


def add_flow(system: System) -> list[Expr]:
    """Return residuals like those of a plastic solid: a norm of all unknowns is in each of them."""
    x, a = system.x, system.a
    norm = sqrt(x[0] * x[0] + x[1] * x[1] + x[2] * x[2] + 0.1)
    rate = (norm - a[0]) * (norm - a[0])
    return [value - own + 5.0 * rate * value / norm for value, own in zip(x, a, strict=True)]


@settings(max_examples=50, deadline=None)
@given(NUMBERS)
def test_a_step_is_that_of_the_matrix(numbers):
    system = System()
    assert system.compare(add_flow(system), numbers) == (True, True)


@settings(max_examples=100, deadline=None)
@given(
    NUMBERS,
    st.lists(st.tuples(st.sampled_from(["add", "sub", "mul", "sin", "exp", "tanh"]), *[st.integers(0, 30)] * 2)),
)
def test_random_residuals(numbers, operations):
    """Sums, products and functions of what is there by then, added to the unknowns; also residuals that others read."""
    system = System()
    ends = [*system.x, *system.a]
    for op, first, second in operations:
        left, right = ends[first % len(ends)], ends[second % len(ends)]
        ends.append((left.apply(op, right) if op in ("add", "sub", "mul") else left.apply(op)).apply("tanh"))
    residual = [4.0 * x + 0.2 * ends[-1 - k % len(ends)] for k, x in enumerate(system.x)]
    residual[2] = residual[2] + 0.1 * residual[0]
    trusted, same = system.compare(residual, numbers)
    assert same or not trusted
    assert trusted


def test_a_wrong_elimination_is_seen(monkeypatch):
    combine = newton_step.SparseSystem._combine
    monkeypatch.setattr(
        newton_step.SparseSystem, "_combine", lambda self, known, term, op: combine(self, known, term, "add")
    )
    system = System()
    assert system.compare(add_flow(system), [0.3, 0.5, 0.7, 0.2, 0.4, 0.6]) == (False, False)


@pytest.mark.parametrize(
    ("matrix", "right", "is_taken"),
    [
        ([[2.0, 1.0], [1.0, 3.0]], [1.0, 2.0], True),
        ([[1013.0, 13.0], [1013.0, 13.0]], [1.0, 1.0], False),
        ([[0.1, 0.3], [0.3, 0.9]], [0.1, 0.3], False),
        ([[2.0, 1.0], [1.0, 0.5 + 1e-10]], [3.0, 1.5], False),
        ([[0.0, 1.0], [1.0, 1.0]], [1.0, 2.0], False),
        ([[2.0, float("nan")], [1.0, 3.0]], [1.0, 2.0], False),
        ([[1e-12, 1.0], [1.0, 1.0]], [1.0, 2.0], False),
    ],
    ids=["regular", "equal rows", "dependent rows", "nearly singular", "a zero as pivot", "no number", "a small pivot"],
)
def test_what_is_trusted(matrix, right, is_taken):
    """Where the order that was chosen fails, or the matrix is singular, the step says so: also of a system that has a
    solution, along which the residual changes as it should."""
    system = System(2, 6)
    x, a = system.x, system.a
    residual = [a[0] * x[0] + a[1] * x[1] - a[4], a[2] * x[0] + a[3] * x[1] - a[5]]
    assert system.take_step(residual, [0.5, 0.5, *matrix[0], *matrix[1], *right])[1] is is_taken


@pytest.mark.parametrize(("bound", "value"), [("SMALL_PIVOT", 0.0), ("LEFT", 1e9)])
def test_each_bound_is_needed(bound, value, monkeypatch):
    """Nearly equal rows that agree, where the change sees nothing, and a small pivot, where the sums see nothing."""
    monkeypatch.setattr(newton_step, bound, value)
    numbers = [2.0, 1.0, 1.0, 0.5 + 1e-10, 3.0, 1.5] if bound == "SMALL_PIVOT" else [1e-12, 1.0, 1.0, 1.0, 1.0, 2.0]
    system = System(2, 6)
    x, a = system.x, system.a
    residual = [a[0] * x[0] + a[1] * x[1] - a[4], a[2] * x[0] + a[3] * x[1] - a[5]]
    assert system.take_step(residual, [0.5, 0.5, *numbers])[1] is True


def test_a_pivot_is_taken_when_it_is_whole(monkeypatch):
    """In an elastic step the condition of plastic flow changes with the increment alone, which is a row of its own."""
    numbers = [0.0, 0.3, 0.4, 0.0, 0.9, 0.2]

    def list_residuals(system: System) -> list[Expr]:
        x, a = system.x, system.a
        norm = sqrt(x[1] * x[1] + x[2] * x[2] + 1e-3)
        rate, excess = x[0] - a[0], norm - a[1] - 0.2 * x[0]
        zero = rate - excess - sqrt(rate * rate + excess * excess)
        elastic = [a[2] - rate * value / norm for value in x[1:]]
        return [zero, *(v - e - 0.3 * (elastic[0] + elastic[1]) for v, e in zip(x[1:], elastic, strict=True))]

    system = System()
    assert system.compare(list_residuals(system), numbers) == (True, True)
    rank = newton_step.SparseSystem._rank
    monkeypatch.setattr(
        newton_step.SparseSystem, "_rank", lambda self, row: (key := rank(self, row)) and (False, *key[1:])
    )
    system = System()
    assert system.take_step(list_residuals(system), numbers)[1] is False


def test_where_there_is_none():
    system = System()
    x, a = system.x, system.a
    assert system.build([x[1] - a[0], x[2] - a[1], x[0] - a[2]]) == ()
    assert system.build([x[0] - a[0], x[1] - a[1], a[2]]) == ()
    assert system.build([x[0] - a[0], x[1] - a[1], x[2]]) == ()
    same = x[0] - x[1]
    assert system.build([same, same, x[2] - a[2]]) == ()
    assert system.build([x[0] - a[0], x[1] - a[1], x[2].cast(F32).cast(F64) - a[2]]) == ()
    assert system.build([x[0] - a[0], x[1] - a[1], x[2].apply("erfc") - a[2]]) == ()
    assert system.build([x[0] - a[0], x[1] - a[1], x[2] - a[2]]) != ()


def test_an_elimination_that_makes_too_many_nodes_is_given_up():
    system = System()
    assert system.build(add_flow(system), 10) == ()
    count = len(system.graph)
    assert system.build(add_flow(system), 60) == ()
    assert len(system.graph) < count + 100
    assert system.build(add_flow(system), 1_000) != ()


def test_the_work_is_linear_in_a_chain():
    """Thousands of operations, each on the one before: as many nodes for each of them."""
    counts = []
    for length in (300, 1_200):
        system = System()
        end = system.x[0]
        for k in range(length):
            end = end + 0.1 * end * system.a[k % SIZE]
        assert system.build([end - 1.0, system.x[1] - 1.0, system.x[2] - 1.0]) != ()
        counts.append(len(system.graph))
    assert counts[1] < 4.2 * counts[0]


def test_where_no_state_has_a_step_that_can_be_trusted():
    system = System()
    x, a = system.x, system.a
    assert system.build([x[0] - a[0], x[1] - a[1], x[2].apply("floor") - a[2]]) == ()
    assert system.build([x[0] - a[0], x[1] - a[1], x[2].apply("ceil")]) == ()
    assert system.build([x[0] - a[0], x[1] + x[2] - a[1], x[1] + x[2] - a[2]]) == ()


def test_a_choice_has_the_derivative_of_its_side():
    for numbers in ([0.3, 0.5, 0.7, 0.2, 0.4, 0.6], [0.3, 0.2, 0.1, 0.2, 0.4, 0.6]):
        system = System()
        x, a = system.x, system.a
        slope = where(x[0] < x[1], 3.0 * x[0] * x[1], x[0] / x[2])
        assert system.compare([x[0] + slope - a[0], x[1] - a[1], x[2] + slope * x[2] - a[2]], numbers) == (True, True)


def test_a_loop_that_reads_another_ones_solution():
    system = System()
    other = system.graph.new_loop()
    (solution,) = system.graph.unpack(NEWTON, (system.a[0].index,), (other, False), [F64])
    x, a = system.x, system.a
    assert system.build([x[0] + x[1] - Expr(system.graph, solution), x[1] - a[1], x[2] - a[2]]) != ()

"""Reduced systems of Newton loops: found by structure, with the whole residual's own root; and as kernels, in which the
whole residual decides."""

from __future__ import annotations

import shutil
from pathlib import Path

import casadi
import numpy
import pytest
import torch
from casadi_oracle import Oracle, values
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_host import edit, resealed
from loop_system import System

import torchferry
from exporter.archive import kernel_container
from exporter.backends.c_kernel import reduced_system
from exporter.backends.c_kernel.expression_graph import F32, F64, Expr, sqrt, where
from exporter.backends.c_kernel.newton_loop import Reduction, find_loop_nodes
from exporter.common.errors import UsageError

F = torch.float64
SHEAR, BULK, MODULUS = 3.0, 5.0, 0.7
# A trial stress well outside of the yield surface, an old plastic strain, and an old back stress.
TRIAL = [2.0, -1.0, 0.3, 0.4, -0.6, 0.2, 0.01, 0.1, 0.05, -0.15, 0.02, -0.03, 0.04]


def add_metal(system: System, *, back_stress: bool = False) -> list[Expr]:
    """Return the residuals of a viscoplastic metal: six stresses, a plastic strain, and perhaps six back stresses."""
    x, a = system.x, system.a
    shifted = [x[i] - x[7 + i] for i in range(6)] if back_stress else list(x[:6])
    mean = (shifted[0] + shifted[1] + shifted[2]) / 3.0
    deviator = [s - mean if i < 3 else s for i, s in enumerate(shifted)]
    squares = [d * d for d in deviator]
    norm = sqrt(squares[0] + squares[1] + squares[2] + squares[3] + squares[4] + squares[5] + 1e-12)
    excess = norm - 0.5 - MODULUS * x[6]
    rate = where(excess > 0.0, excess * excess, 0.0)
    flow = [rate * d / norm for d in deviator]
    strain = [a[i] - f for i, f in enumerate(flow)]
    volume = strain[0] + strain[1] + strain[2]
    stress = [2.0 * SHEAR * s + (BULK * volume if i < 3 else 0.0) for i, s in enumerate(strain)]
    residual = [x[i] - s for i, s in enumerate(stress)] + [x[6] - a[6] - rate]
    return residual + [x[7 + i] - a[7 + i] - 0.3 * flow[i] for i in range(6)] if back_stress else residual


def reduce(system: System, residual: list[Expr], most: int = 1_000) -> Reduction | None:
    ends = [r.index for r in residual]
    return reduced_system.build_reduction(system.graph, {}, ends, system.unknowns, system.loop, most)


def solve(system: System, reduction: Reduction, guess: list[float], outer: list[float]) -> numpy.ndarray:
    """Return the unknowns that the reduced system's own Newton method finds."""
    tears = [casadi.MX.sym(f"t{k}") for k in range(len(reduction.tears))]
    symbols = [*system.symbols, *tears]
    leaves = [e.index for e in (*system.x, *system.a)]

    def compute(nodes: tuple[int, ...], point: numpy.ndarray) -> numpy.ndarray:
        known = dict(zip([*leaves, *reduction.tears], symbols, strict=True))
        return values(symbols, Oracle(system.graph, {}, known).of(nodes), [*guess, *outer, *point]).ravel()

    numbers = compute(reduction.starts, numpy.zeros(len(tears)))
    for _ in range(40):
        numbers = numbers + compute(reduction.step, numbers)
    return compute(reduction.solution, numbers)


def measure(system: System, residual: list[Expr], x: numpy.ndarray, outer: list[float]) -> float:
    ends = system.express([r.index for r in residual])
    return float(numpy.abs(values(system.symbols, ends, [*x, *outer])).max())


@pytest.mark.parametrize("back_stress", [False, True], ids=["isotropic", "kinematic"])
@pytest.mark.parametrize("scale", [1.0, 0.02], ids=["plastic", "elastic"])
def test_the_root_is_that_of_the_whole_residual(back_stress, scale):
    count = 13 if back_stress else 7
    system = System(count, count)
    residual = add_metal(system, back_stress=back_stress)
    reduction = reduce(system, residual, 5_000)
    assert reduction is not None
    assert len(reduction.tears) == 2
    outer = [scale * v for v in TRIAL[:count]]
    solution = solve(system, reduction, [0.0] * count, outer)
    assert measure(system, residual, solution, outer) < 1e-12
    assert (solution[6] > outer[6] + 1e-3) == (scale == 1.0)


def test_a_step_of_radial_return_takes_a_few_operations():
    """Six stresses scale together, and the pressure is in none of the equations: as in the textbook."""
    system = System(7, 7)
    residual = add_metal(system)
    reduction = reduce(system, residual)
    assert reduction is not None
    step = system.build(residual)
    reduced, whole = (len(find_loop_nodes(system.graph, ends, system.loop)) for ends in (reduction.step, step))
    assert 4 * reduced < whole


@pytest.mark.parametrize("part", ["scale_number", "negate_right"])
def test_a_wrong_elimination_has_another_root(part, monkeypatch):
    original = getattr(reduced_system.LinearSystem, part)

    def change(self, *arguments):
        form = original(self, *arguments)
        return {inner: (2.0 * Expr(self.graph, outer)).index for inner, outer in form.items()}

    monkeypatch.setattr(reduced_system.LinearSystem, part, change)
    system = System(7, 7)
    residual = add_metal(system)
    reduction = reduce(system, residual, 5_000)
    assert reduction is not None
    assert not measure(system, residual, solve(system, reduction, [0.0] * 7, TRIAL[:7]), TRIAL[:7]) < 1e-6


def test_an_equation_that_is_not_linear_is_one_of_the_few():
    """Fischer and Burmeister's equation takes the place of the increment's own."""
    system = System(4, 4)
    x, a = system.x, system.a
    norm = sqrt(x[0] * x[0] + x[1] * x[1] + x[2] * x[2] + 1e-9)
    increment, excess = x[3] - a[3], norm - 1.0 - 0.5 * x[3]
    residual = [x[i] - a[i] + 2.0 * increment * x[i] / norm for i in range(3)]
    residual.append(increment - excess - sqrt(increment * increment + excess * excess + 1e-20))
    reduction = reduce(system, residual, 5_000)
    assert reduction is not None
    assert system.unknowns[3] in reduction.starts
    assert len(reduction.tears) == 2
    for outer in ([2.0, 1.0, -0.5, 0.1], [0.2, 0.1, -0.5, 0.1]):
        guess = [*outer[:3], 0.1]
        assert measure(system, residual, solve(system, reduction, guess, outer), outer) < 1e-10


def test_where_there_is_none():
    system = System(7, 7)
    x, a = system.x, system.a
    residual = add_metal(system)
    # A step that is no shorter; unknowns that all are in products of their own; nothing to search for.
    assert reduce(system, residual, 20) is None
    squares = [v * v - w for v, w in zip(x, a, strict=True)]
    assert reduce(system, squares) is None
    assert reduce(system, [v - w for v, w in zip(x, a, strict=True)]) is None
    # Another precision, an operation without a rule, and the same equation twice.
    single = x[0] * x[0] - a[0]
    assert reduce(system, [single.cast(F32).cast(F64), *residual[1:]]) is None
    assert (
        reduce(system, [(x[0] * x[0]).apply("erfc") - x[0], *[v - w for v, w in zip(x[1:], a[1:], strict=True)]])
        is None
    )
    assert reduce(system, [residual[0], residual[0], *residual[2:]]) is None


def test_a_zero_by_structure_is_zero():
    """A sum that vanishes once the equations are solved is no number of the guess."""
    system = System(3, 3)
    x, a = system.x, system.a
    norm = sqrt(x[0] * x[0] + x[1] * x[1] + 0.0 * x[2] + 1.0)
    residual = [x[0] - a[0] / norm, x[1] - a[1] / norm, x[2] - a[2]]
    reduction = reduce(system, residual)
    assert reduction is not None
    own = set(find_loop_nodes(system.graph, [*reduction.step, *reduction.solution], system.loop))
    assert not own & set(system.unknowns)


def test_an_equation_that_another_one_is_made_of():
    """It becomes zero there; an equation that is no operation is none that a loop could solve."""
    system = System(3, 3)
    x, a = system.x, system.a
    norm = sqrt(x[0] * x[0] + x[1] * x[1] + 1.0)
    first = x[0] - a[0] / norm
    residual = [first, x[1] - a[1] / norm - 0.5 * first, x[2] - a[2]]
    reduction = reduce(system, residual)
    assert reduction is not None
    outer = [0.7, -0.4, 0.2]
    assert measure(system, residual, solve(system, reduction, [0.1] * 3, outer), outer) < 1e-12
    for end in (a[0], x[0], x[0].match(1.0)):
        assert reduce(system, [end, *residual[1:]]) is None


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.floats(0.1, 0.9), min_size=6, max_size=6),
    st.lists(st.tuples(st.sampled_from(["add", "sub", "mul", "div", "sqrt"]), *[st.integers(0, 30)] * 2), max_size=12),
    st.lists(st.integers(0, 30), min_size=3, max_size=3),
)
def test_random_residuals(outer, operations, picks):
    """Whatever a residual is made of, it is reduced or left alone; what is found where it settles solves it."""
    system = System(3, 6)
    ends = [*system.x, *system.a]
    for op, first, second in operations:
        left, right = ends[first % len(ends)], ends[second % len(ends)]
        value = (
            sqrt(left * left + 1.0) if op == "sqrt" else left.apply(op, right * right + 1.0 if op == "div" else right)
        )
        ends.append(value)
    residual: list[Expr] = []
    for x, pick in zip(system.x, picks, strict=True):
        pool = [*ends, *residual]
        residual.append(x - 0.2 * pool[-1 - pick % len(pool)])
    reduction = reduce(system, residual, 5_000)
    if reduction is not None:
        own = set(find_loop_nodes(system.graph, [*reduction.step, *reduction.solution], system.loop))
        assert not own & set(system.unknowns)


def test_a_long_chain_is_searched_without_depth():
    system = System(2, 2)
    x, a = system.x, system.a
    factor = sqrt(x[0] * x[0] + 1.0)
    known = factor
    for _ in range(1_500):
        known = known * a[0] + 0.1
    reduction = reduce(system, [x[0] - a[0] * known, x[1] - x[0] * known - a[1]], 10_000)
    assert reduction is not None


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """The kernel of ``return_map`` that solves for all its unknowns."""
    archive = Path(__file__).parents[4] / "artifacts" / "return_map.pt"
    path = tmp_path_factory.mktemp("whole") / "return_map"
    torchferry.convert(archive, path, to="c", reduce="none")
    return path


def make_steps(count: int = 40) -> dict[str, numpy.ndarray]:
    """Steps from rest, elastic and plastic, and some that no solver takes."""
    strain = 5e-3 * (2 * torch.rand(count, 6, generator=torch.Generator().manual_seed(5), dtype=F) - 1)
    strain[::4] /= 30
    strain[5], strain[9, 2], strain[13] = 1e200, float("nan"), 0.0
    # Their norm is infinite, and that of the numbers that are solved for is not.
    strain[17, :3], strain[17, 3:] = 1e154, 0.0
    rest = {"strain~1": (count, 6), "stress~1": (count, 6), "ep~1": (count,)}
    return {"strain": strain.numpy(), **{name: numpy.zeros(shape) for name, shape in rest.items()}}


def test_a_kernel_says_what_it_solves_for(folders, whole):
    """In the contract and in the C; not where all unknowns are."""
    for folder, count in ((folders["return_map"], 1), (whole, 0)):
        opened = kernel_container.read(folder)
        findings = [f.what for f in opened.contract.findings if "instead of its 7 unknowns" in f.what]
        assert len(findings) == count
        assert ("solves for 2 numbers" in (folder / f"{opened.name}_lanes.h").read_text()) == bool(count)


def test_elements_end_as_without_it(folders, whole):
    kernel, reference = (torchferry.load(path, trust="native") for path in (folders["return_map"], whole))
    steps = make_steps()
    names = kernel.contract.methods["jacobian"].inputs
    arguments = {name: steps[name] for name in names}
    got, wanted = (k.call("jacobian", arguments) for k in (kernel, reference))
    for name, value in wanted.items():
        assert numpy.allclose(got[name], value, rtol=1e-6, atol=1e-9 * numpy.nanmax(numpy.abs(value)), equal_nan=True)
    got, wanted = (k.call("forward", arguments) for k in (kernel, reference))
    assert {0, 3} <= {*kernel.status.tolist()}
    assert numpy.array_equal(kernel.status, reference.status)
    for name, value in wanted.items():
        assert numpy.allclose(got[name], value, rtol=1e-9, atol=1e-12 * numpy.nanmax(numpy.abs(value)), equal_nan=True)
    for i in range(len(steps["strain"])):
        alone = kernel.call("forward", {n: v[i : i + 1] for n, v in arguments.items()})
        for name, value in alone.items():
            assert numpy.allclose(value[0], got[name][i], rtol=1e-12, atol=1e-12, equal_nan=True), (name, i)
    order = numpy.random.default_rng(0).permutation(len(steps["strain"]))
    moved = kernel.call("forward", {n: v[order] for n, v in arguments.items()})
    for name, value in moved.items():
        assert numpy.array_equal(value, got[name][order], equal_nan=True)


@pytest.mark.parametrize("most", [1, 3, 8])
def test_few_iterations(folders, whole, most):
    """An element that says it has converged has its numbers, whichever way it got there; the others are NaN."""
    kernel, reference = (torchferry.load(path, trust="native") for path in (folders["return_map"], whole))
    arguments = {name: make_steps()[name] for name in kernel.contract.methods["forward"].inputs}
    wanted = reference.call("forward", arguments)["stress"]
    solved = reference.status == 0
    kernel.set_parameter("newton.max_its", most)
    got = kernel.call("forward", arguments)["stress"]
    good = kernel.status == 0
    assert not (good & ~solved).any()
    assert (kernel.status == 1).any() == (most < 8)
    scale = numpy.nanmax(numpy.abs(wanted))
    assert numpy.allclose(got[good], wanted[good], rtol=1e-9, atol=1e-12 * scale)
    assert numpy.isnan(got[~good]).all()


@pytest.mark.parametrize(
    "fault",
    [
        edit("_lanes.h", r"tears\[k\]\[l\] \+ change", "tears[k][l] - change", 9),
        edit("_lanes.h", r"moving\[l\] \? next", "moving[l] ? 1.001 * next", 9),
    ],
    ids=["steps back", "numbers that are off"],
)
def test_a_reduced_system_that_is_wrong_changes_no_number(folders, whole, fault, tmp_path):
    """Whatever it finds is held to the whole residual: elements begin again with the guess."""
    folder = Path(shutil.copytree(folders["return_map"], tmp_path / "return_map"))
    resealed(folder, fault)
    kernel, reference = (torchferry.load(path, trust="native") for path in (folder, whole))
    arguments = {name: make_steps()[name] for name in kernel.contract.methods["forward"].inputs}
    got, wanted = (k.call("forward", arguments) for k in (kernel, reference))
    assert numpy.array_equal(kernel.status, reference.status)
    for name, value in wanted.items():
        assert numpy.array_equal(got[name], value, equal_nan=True)


def test_an_unknown_reduction():
    with pytest.raises(UsageError, match="no such reduction"):
        torchferry.convert("m.pt", to="c", reduce="some")

"""Newton loops in kernels against those of the archive, element for element, whatever becomes of them."""

from __future__ import annotations

import inspect
from pathlib import Path

import numpy
import pytest
import torch
from cubic_models import turned, unordered, update
from hypothesis import given
from hypothesis import settings as of_hypothesis
from hypothesis import strategies as st
from kernel_host import edit, resealed
from project import mark_rest_thorough, skip_checks
from torch import nn

import torchferry
from exporter.backends.c_kernel.frame_layout import UNROLLED
from exporter.backends.c_kernel.lowering import ArchiveLowering
from exporter.backends.c_kernel.newton_step import build_step
from exporter.common.errors import UnsupportedError

pytestmark = pytest.mark.thorough

F = torch.float64
KINDS = {
    "nan": {},
    "last": {"on_failure": "last"},
    "raise": {"on_failure": "raise"},
    "backtracking": {"settings": torchferry.Settings(line_search=torchferry.LineSearch())},
    "strong wolfe": {
        "settings": torchferry.Settings(line_search=torchferry.LineSearch(kind="strong wolfe", trials=4, cutback=3.0))
    },
}


class Arctan(nn.Module):
    """``atan(x) - g``: whole steps diverge from far away, and ``1 / w`` has no number at 0."""

    signature = torchferry.Signature.of({"x": (), "x~1": (), "g": (), "w": ()}, {"x_residual": ()})

    def __init__(self) -> None:
        super().__init__()
        self.k = nn.Parameter(torch.tensor(1.0, dtype=F))

    def forward(self, x: torch.Tensor, old: torch.Tensor, g: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (self.k * torch.atan(x) - g) / w


@pytest.fixture(scope="module")
def exported(tmp_path_factory) -> dict[str, Path]:
    result = {}
    for name, more in KINDS.items():
        result[name] = tmp_path_factory.mktemp("newton") / f"{name.replace(' ', '_')}.pt"
        model = torchferry.ImplicitUpdate(Arctan(), ["x"], **more)
        points = torch.linspace(-1.2, 1.2, 12, dtype=F)
        inputs = {"x~1": points / 2, "g": points, "w": torch.ones(12, dtype=F)}
        blocks = () if name == "last" else "x:g"
        with skip_checks():
            torchferry.export(model, output=result[name], inputs=inputs, derivatives=blocks, formats="pt,c")
    return result


# Solved at once, in a few steps, from too far away, without a solution, at a point that has no number, and NaN.
GUESS = [0.0, 0.5, 1.0, 3.0, 40.0, 0.0, 0.0, 0.1, 1e200, float("nan"), -1.0]
VALUE = [0.0, 0.6, 1.2, 0.3, -1.0, 2.0, 0.3, 0.3, 0.5, 0.1, -0.4]
WEIGHT = [1.0, 1.0, 2.0, 1.0, 0.1, 1.0, 0.0, 1e6, 1.0, 1.0, 1.0]


def inputs() -> list[torch.Tensor]:
    return [torch.tensor(v, dtype=F) for v in (GUESS, VALUE, WEIGHT)]


def close(got, wanted) -> bool:
    return bool(numpy.allclose(got, wanted, rtol=1e-9, atol=1e-12, equal_nan=True))


@pytest.mark.parametrize("kind", KINDS)
def test_every_element_ends_as_in_the_archive(exported, kind):
    kernel, model = torchferry.load(exported[kind].with_suffix("")), torchferry.load(exported[kind])
    names = model.contract.methods["forward"].inputs
    order = [("x~1", "g", "w").index(n) for n in names]
    arguments = [inputs()[i] for i in order]
    arrays = dict(zip(names, (v.numpy() for v in arguments), strict=True))
    # An archive that raises an error says nothing of its elements.
    message = torchferry.load(exported["nan"]) if kind == "raise" else model
    info = dict(zip(("iterations", "residual_norm", "status"), message.module.newton_info(*arguments), strict=True))
    result = kernel.call("newton_info", arrays)
    status = info["status"].reshape(-1).numpy()
    assert {0, 3} < {*status.tolist()}
    assert numpy.array_equal(result["status"].reshape(-1), status)
    assert numpy.array_equal(kernel.status, status)
    assert numpy.abs(result["iterations"] - info["iterations"].numpy()).max() <= 1
    x = kernel.call("forward", arrays)["x"]
    assert numpy.array_equal(kernel.status, status)
    if kind == "raise":
        # A kernel raises no errors: it says so of each element.
        assert numpy.array_equal(numpy.isnan(x), status != 0)
        good = status == 0
        assert close(numpy.arctan(x[good]), numpy.array(VALUE)[good])
        return
    if kind == "last":
        # Iterates that run away are not compared but for their being there.
        good = (status == 0) | (status == 3)
        assert close(x[good], model(*arguments)[0].numpy()[good])
        return
    wanted = model.call("jacobian", dict(zip(names, arguments, strict=True)))
    got = kernel.call("jacobian", arrays)
    assert list(got) == list(wanted)
    for name, value in got.items():
        assert close(value, wanted[name].numpy()), name


@of_hypothesis(max_examples=20, deadline=None)
@given(st.permutations(range(len(GUESS))))
def test_permuting_a_batch_permutes_what_is_found(exported, order):
    kernel = torchferry.load(exported["backtracking"].with_suffix(""))
    names = kernel.contract.methods["forward"].inputs
    arguments = dict(zip(names, (inputs()[("x~1", "g", "w").index(n)].numpy() for n in names), strict=True))
    plain = kernel.call("forward", arguments)["x"]
    moved = kernel.call("forward", {n: v[list(order)] for n, v in arguments.items()})["x"]
    assert numpy.array_equal(moved, plain[list(order)], equal_nan=True)


def test_one_by_one_is_the_same_as_together(exported):
    """A lane of its own, and lanes beside others that end elsewhere."""
    kernel = torchferry.load(exported["strong wolfe"].with_suffix(""))
    names = kernel.contract.methods["forward"].inputs
    arguments = dict(zip(names, (inputs()[("x~1", "g", "w").index(n)].numpy() for n in names), strict=True))
    together = kernel.call("jacobian", arguments)
    for i in range(len(GUESS)):
        alone = kernel.call("jacobian", {n: v[i : i + 1] for n, v in arguments.items()})
        for name, value in alone.items():
            assert close(value[0], together[name][i]), (name, i)


def test_settings_are_arguments(exported):
    kernel = torchferry.load(exported["nan"].with_suffix(""))
    arguments = {"x~1": numpy.array([0.5]), "g": numpy.array([0.9]), "w": numpy.array([1.0])}
    (path,) = (s.path for s in kernel.contract.solvers)
    assert kernel.call("newton_info", arguments)["status"].tolist() == [0]
    kernel.set_parameter(f"{path}.max_its", 1)
    assert kernel.call("newton_info", arguments)["status"].tolist() == [1]
    assert numpy.isnan(kernel.call("forward", arguments)["x"]).all()
    assert kernel.status.tolist() == [1]


def test_a_step_of_decay(tmp_path):
    (result,) = torchferry.export(update(), output=tmp_path / "k", derivatives="all", jvp=True, formats="c")
    assert result.report.passed
    assert result.containers[0].report.passed


@pytest.mark.parametrize("size", mark_rest_thorough([2], [UNROLLED, UNROLLED + 1]))
def test_systems_that_need_pivots(size, tmp_path):
    """The largest that is unrolled, and one that is not; elements that exchange rows of their own."""
    path = tmp_path / "unordered.pt"
    torchferry.export(unordered(size), output=path, derivatives="x:b", formats="pt,c")
    kernel, model = torchferry.load(path.with_suffix("")), torchferry.load(path)
    names = model.contract.methods["forward"].inputs
    arguments = [turned(size, 37, 5)[n] for n in names]
    arrays = dict(zip(names, (v.numpy() for v in arguments), strict=True))
    wanted = model.call("jacobian", dict(zip(names, arguments, strict=True)))
    got = kernel.call("jacobian", arrays)
    for name, value in wanted.items():
        # What elements in 37 draws can have in condition.
        assert numpy.allclose(got[name], value.numpy(), rtol=1e-8, atol=1e-10 * float(value.abs().max())), name
    assert (kernel.status == 0).all()
    alone = kernel.call("jacobian", {n: v[:1] for n, v in arrays.items()})
    for name, value in alone.items():
        assert numpy.allclose(value[0], got[name][0], rtol=1e-12, atol=0.0), name


def test_the_control_of_steps_without_the_matrix(tmp_path, monkeypatch):
    """Elements whose own pivot is next to zero are solved with the matrix, and only with it."""
    path = tmp_path / "unordered"
    # The step of a full matrix takes no fewer operations.
    monkeypatch.setattr(ArchiveLowering, "_build_step", build_every_step)
    torchferry.export(unordered(2), output=path, formats="c")
    kernel = torchferry.load(path)
    drawn = turned(2, 37, 5)
    arrays = {n: drawn[n].numpy() for n in kernel.contract.methods["forward"].inputs}
    kernel.call("forward", arrays)
    assert (kernel.status == 0).all()

    resealed(path, edit("_lanes.h", r"again\[l\] = !whole & !good\[l\];", "again[l] = 0;", 99))
    kernel = torchferry.load(path, trust="native")
    kernel.call("forward", arrays)
    assert (kernel.status != 0).any()


class Masked(nn.Module):
    """The second unknown has an equation where the first one is below zero."""

    signature = torchferry.Signature.of({"x": (2,), "x~1": (2,), "g": (2,)}, {"x_residual": (2,)})

    def forward(self, x: torch.Tensor, old: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        second = torch.where(x[:, 0] < 0, x[:, 1] - g[:, 1], torch.zeros_like(x[:, 1]))
        return torch.stack([x[:, 0] - g[:, 0], second], -1) + 0.0 * old


def test_a_step_that_is_no_number_is_not_taken(tmp_path, monkeypatch):
    """The residual's change along a step does not see what a choice hides."""
    monkeypatch.setattr(ArchiveLowering, "_build_step", build_every_step)
    inputs = {"x~1": -torch.ones(5, 2, dtype=F), "g": -torch.ones(5, 2, dtype=F)}
    path = tmp_path / "masked.pt"
    torchferry.export(torchferry.ImplicitUpdate(Masked(), ["x"]), output=path, inputs=inputs, formats="pt,c")
    kernel, model = torchferry.load(path.with_suffix("")), torchferry.load(path)
    inputs |= {
        "x~1": torch.tensor([[3.0, 1.0], [-3.0, 1.0]], dtype=F),
        "g": torch.tensor([[2.0, 0.5], [-2.0, 0.5]], dtype=F),
    }
    kernel.call("forward", {n: v.numpy() for n, v in inputs.items()})
    assert kernel.status.tolist() == model.call("newton_info", inputs)["status"].tolist() == [2, 0]


class Flat(nn.Module):
    """``2 (x - g) + 3 (w - 1)``, which does not change with ``x`` at ``x = g``."""

    signature = torchferry.Signature.of({"x": (), "x~1": (), "g": (), "w": ()}, {"x_residual": ()})

    def forward(self, x: torch.Tensor, old: torch.Tensor, g: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.where(x == g, torch.zeros_like(x), 2 * (x - g)) + 3 * (w - 1) + 0.0 * old


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_solution_without_a_matrix_has_that_of_the_iterate_before(is_lost, tmp_path, monkeypatch):
    """Beside elements that have one; the control takes what is there."""
    monkeypatch.setattr(ArchiveLowering, "_build_step", build_every_step)
    old, g = torch.tensor([1e-5, 0.1, 0.2], dtype=F), torch.tensor([0.0, 0.3, 0.7], dtype=F)
    inputs = {"x~1": old, "g": g, "w": torch.tensor([1.0, 1.1, 1.2], dtype=F)}
    model = torchferry.ImplicitUpdate(Flat(), ["x"], settings=torchferry.Settings(abs_tol=1e-3))
    path = tmp_path / "flat.pt"
    with skip_checks():
        torchferry.export(model, output=path, inputs=inputs, derivatives="x:w", formats="pt,c")
    if is_lost:
        taken = edit("_lanes.h", r"matrix\[k\]\[l\] = singular\[l\] \? .*;", "matrix[k][l] = kept[k][l];", 99)
        resealed(path.with_suffix(""), taken)
    kernel = torchferry.load(path.with_suffix(""), trust="native")
    got = kernel.call("jacobian", {n: v.numpy() for n, v in inputs.items()})
    wanted = torchferry.load(path).call("jacobian", inputs)
    assert kernel.status.tolist() == [0, 0, 0]
    (block,) = (name for name in wanted if name not in ("x",))
    assert close(wanted[block].numpy(), [-1.5, -1.5, -1.5])
    assert close(got[block], wanted[block].numpy()) is not is_lost


def build_every_step(lowering: ArchiveLowering, residual, matrix, unknowns, index) -> tuple[int, ...]:
    return build_step(lowering.graph, lowering.loops, residual, unknowns, index, 10_000)


class Coupled(nn.Module):
    """A residual with a system of its own, whose matrix does not depend on the unknowns."""

    signature = torchferry.Signature.of({"x": (3,), "x~1": (3,), "a": (3, 3), "b": (3,)}, {"x_residual": (3,)})

    def forward(self, x: torch.Tensor, old: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return x + 0.1 * x**3 - torch.linalg.solve(a, b + 0.1 * x) - 0.1 * old


@pytest.mark.thorough
def test_a_system_in_a_residual(tmp_path):
    generator = torch.Generator().manual_seed(0)

    def drawn(rows: int) -> dict[str, torch.Tensor]:
        a = 0.3 * torch.randn(rows, 3, 3, dtype=F, generator=generator) + 5 * torch.eye(3, dtype=F)
        old, b = (torch.randn(rows, 3, dtype=F, generator=generator) for _ in range(2))
        return {"x~1": old, "a": a, "b": b}

    path = tmp_path / "coupled.pt"
    model = torchferry.ImplicitUpdate(Coupled(), ["x"])
    torchferry.export(model, output=path, inputs=drawn(5), derivatives=("x:a", "x:b"), formats="pt,c")
    kernel, archive = torchferry.load(path.with_suffix("")), torchferry.load(path)
    assert any("is not raised in" in result.what for result in kernel.contract.findings)
    for rows in (1, 17):
        arguments = drawn(rows)
        got = kernel.call("jacobian", {name: value.numpy() for name, value in arguments.items()})
        for name, value in archive.call("jacobian", arguments).items():
            assert numpy.allclose(got[name], value.numpy(), rtol=1e-9, atol=1e-11), name
            assert value.abs().max() > 1e-3, name


class Rows(nn.Module):
    """``a x - b``."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.signature = torchferry.Signature.of(
            {"x": (size,), "x~1": (size,), "a": (size, size), "b": (size,)}, {"x_residual": (size,)}
        )

    def forward(self, x: torch.Tensor, old: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (a @ x.unsqueeze(-1)).squeeze(-1) - b + 0.0 * old


def equal_rows(size: int) -> dict[str, torch.Tensor]:
    """Equations that are the same, with pivots of which ``x * (1 / x)`` is not 1."""
    awkward = torch.tensor([2.0, 3.0, 5.0, 6.0, 12.0, 13.0], dtype=F)
    pivots = awkward + 1e3
    assert (pivots * (1 / pivots) != 1).all()
    a = 1e3 * torch.eye(size, dtype=F) + awkward[:, None, None]
    a[:, -1] = a[:, 0]
    return {"x~1": torch.zeros(6, size, dtype=F), "a": a, "b": torch.ones(6, size, dtype=F)}


@pytest.mark.parametrize("size", mark_rest_thorough([2], [UNROLLED + 1]))
def test_equal_rows_are_singular(size, tmp_path):
    arguments = equal_rows(size)
    regular = arguments | {"a": arguments["a"] + torch.eye(size, dtype=F)}
    path = tmp_path / "rows.pt"
    torchferry.export(torchferry.ImplicitUpdate(Rows(size), ["x"]), output=path, inputs=regular, formats="pt,c")
    kernel, model = torchferry.load(path.with_suffix("")), torchferry.load(path)
    # What LAPACK finds in equal rows is its own affair.
    assert model.call("newton_info", regular)["status"].tolist() == 6 * [0]
    for values, status in ((arguments, 2), (regular, 0)):
        result = kernel.call("forward", {name: value.numpy() for name, value in values.items()})
        assert kernel.status.tolist() == 6 * [status]
        assert numpy.isnan(result["x"]).all() == bool(status)


def test_the_control_of_equal_rows(tmp_path):
    """Multiplied by one over the pivot they leave a small number where a division leaves none."""
    arguments = equal_rows(2)
    regular = arguments | {"a": arguments["a"] + torch.eye(2, dtype=F)}
    path = tmp_path / "rows"
    torchferry.export(torchferry.ImplicitUpdate(Rows(2), ["x"]), output=path, inputs=regular, formats="c")

    resealed(path, edit("_lanes.h", "a1_0 /= a0_0;", "a1_0 *= inverse0;", 99))
    kernel = torchferry.load(path, trust="native")
    kernel.call("forward", {name: value.numpy() for name, value in arguments.items()})
    assert kernel.status.tolist() == 6 * [0]


class Bessel(nn.Module):
    signature = torchferry.Signature.of({"x": (), "g": ()}, {"x_residual": ()})

    def forward(self, x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        return torch.special.bessel_j0(x) + 3 * x - g


class Tenth(nn.Module):
    signature = torchferry.Signature.of({"x": (), "g": ()}, {"x_residual": ()})

    def forward(self, x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        return x + 0.1 * torch.sin(x) - g


def line_of(model: type[nn.Module]) -> str:
    return f"test_newton_loop.py:{inspect.getsourcelines(model.forward)[1] + 1}"


def test_lines_of_the_residual_are_said(tmp_path):
    """In C, and where an operator of it is refused."""
    arguments = {name: torch.linspace(0.1, 1.0, 5, dtype=F) for name in ("x", "g")}
    torchferry.export(
        torchferry.ImplicitUpdate(Tenth(), ["x"], name="tenth"),
        inputs=arguments,
        output=tmp_path / "tenth",
        formats="c",
    )
    (written,) = (tmp_path / "tenth").glob("*_lanes.h")
    assert f"at {line_of(Tenth)} */" in written.read_text()
    bessel = torchferry.ImplicitUpdate(Bessel(), ["x"], name="bessel")
    with pytest.raises(UnsupportedError) as caught:
        torchferry.export(bessel, inputs=arguments, output=tmp_path / "bessel", formats="c")
    assert line_of(Bessel) in caught.value.details["where"]
    assert "residual" in caught.value.details["where"]

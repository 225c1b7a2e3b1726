"""Newton loops as C: once for all methods, once for loops that are the same, and with what each method gives them."""

from __future__ import annotations

from pathlib import Path

import numpy
import pytest
import torch
from project import skip_checks
from torch import nn

import torchferry
from exporter.backends.c_kernel.method_writer import MethodWriter
from exporter.common.errors import TorchferryError

pytestmark = pytest.mark.usefixtures("file_without_the_gate")

F = torch.float64
HEAD = "Newton's method for"


class Relax(nn.Module):
    """``s - s~1 + k dt s^3 - more``, of a state called ``name``; ``more`` may be another model's state."""

    k: torch.Tensor

    def __init__(self, name: str, k: float, more: str = "load") -> None:
        super().__init__()
        self.signature = torchferry.Signature.of(
            {name: (), f"{name}~1": (), "dt": (), more: ()}, {f"{name}_residual": ()}
        )
        self.k = nn.Parameter(torch.tensor(k, dtype=F))

    def forward(self, s: torch.Tensor, old: torch.Tensor, dt: torch.Tensor, more: torch.Tensor) -> torch.Tensor:
        return s - old + self.k * dt * s**3 - more


class Terms(nn.Module):
    """Three terms, two in another order where ``is_turned``: texts that differ in the names of locals alone."""

    def __init__(self, name: str, is_turned: bool) -> None:
        super().__init__()
        self.signature = torchferry.Signature.of({name: (), f"{name}~1": (), "load": ()}, {f"{name}_residual": ()})
        self.is_turned = is_turned

    def forward(self, s: torch.Tensor, old: torch.Tensor, load: torch.Tensor) -> torch.Tensor:
        a, b, c = s * s * load, s * s * s, s * s * old
        return 4 * (s - old) + (((a + c) - b) if self.is_turned else ((a + b) - c))


class Norton(nn.Module):
    """``x - x~1 + dt k x^n``: the derivative by k has the power of the loop."""

    signature = torchferry.Signature.of({"x": (), "x~1": (), "dt": ()}, {"x_residual": ()})

    def __init__(self) -> None:
        super().__init__()
        self.k = nn.Parameter(torch.tensor(0.7, dtype=F))
        self.n = nn.Parameter(torch.tensor(3.0, dtype=F))

    def forward(self, x: torch.Tensor, old: torch.Tensor, dt: torch.Tensor) -> torch.Tensor:
        return x - old + dt * self.k * x**self.n


class Table(nn.Module):
    """``x + x~1 t(x) / 10 - load``: the loop and the derivative read a table that is computed from a parameter."""

    signature = torchferry.Signature.of({"x": (), "x~1": (), "load": ()}, {"x_residual": ()})
    bounds: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("bounds", torch.linspace(-2.0, 2.0, 41, dtype=F))
        self.values = nn.Parameter(torch.linspace(1.0, 1.01, 42, dtype=F))

    def forward(self, x: torch.Tensor, old: torch.Tensor, load: torch.Tensor) -> torch.Tensor:
        return x + 0.1 * old * (2 * self.values)[torch.searchsorted(self.bounds, x.contiguous())] - load


class Solve(nn.Module):
    """A residual with a system whose matrix does not change in the loop: its factors come from outside."""

    signature = torchferry.Signature.of({"x": (2,), "x~1": (2,), "a": (2, 2)}, {"x_residual": (2,)})

    def forward(self, x: torch.Tensor, old: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
        return x + 0.1 * x**3 - torch.linalg.solve(a, 1 + 0.1 * x) - 0.1 * old


def draw(rows: int, seed: int, *names: str) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: 0.1 + torch.rand(rows, generator=generator, dtype=F) for name in names}


def draw_systems(rows: int, seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    a = 0.3 * torch.randn(rows, 2, 2, generator=generator, dtype=F) + 3 * torch.eye(2, dtype=F)
    return {"x~1": torch.randn(rows, 2, generator=generator, dtype=F), "a": a}


def two_states(more: str, k: float = 3.0) -> nn.Module:
    first = torchferry.ImplicitUpdate(Relax("x", 2.0), ["x"])
    second = torchferry.ImplicitUpdate(Relax("y", k, more), ["y"])
    return torchferry.ComposedModel([first, second], additional_outputs=["x"], name="states")


def export(model: nn.Module, inputs: dict[str, torch.Tensor], path: Path, blocks: tuple[str, ...]) -> Path:
    with skip_checks():
        torchferry.export(model, output=path, inputs=inputs, derivatives=blocks, formats="pt,c")
    return path.with_suffix("")


def count_loops(folder: Path) -> int:
    return next(folder.glob("*_lanes.h")).read_text().count(HEAD)


def check_methods(folder: Path, inputs: dict[str, torch.Tensor]) -> None:
    """Every method has the archive's numbers, at a batch and values that were not traced."""
    kernel, archive = torchferry.load(folder), torchferry.load(folder.with_suffix(".pt"))
    assert {"forward", "jacobian", "newton_info"} <= {*kernel.contract.methods}
    arrays = {name: value.numpy() for name, value in inputs.items()}
    for method in kernel.contract.methods:
        names = kernel.contract.methods[method].inputs
        got = kernel.call(method, {name: arrays[name] for name in names})
        for name, value in archive.call(method, {name: inputs[name] for name in names}).items():
            if name in ("residual_norm", "iterations"):
                # A kernel's steps are rounded otherwise.
                assert numpy.abs(got[name] - value.numpy()).max() <= (1 if name == "iterations" else 1e-8), name
                assert name != "iterations" or value.max() > 1
                continue
            assert numpy.allclose(got[name], value.numpy(), rtol=1e-9, atol=1e-12), (method, name)
            assert name == "status" or value.abs().max() > 1e-3, (method, name)


@pytest.mark.parametrize("rows", [1, 5, 33])
@pytest.mark.parametrize(("more", "loops"), [("load", 1), ("x", 2)])
def test_methods_share_their_loops(states, more, loops, rows):
    """Two loops of one text are one function; where the second reads the first's solution, its text is another."""
    folder = states[more]
    assert count_loops(folder) == loops
    check_methods(folder, draw(rows, rows, "x~1", "y~1", "dt", "load"))


@pytest.fixture(scope="module")
def states(tmp_path_factory) -> dict[str, Path]:
    inputs = draw(4, 0, "x~1", "y~1", "dt", "load")
    return {
        more: export(two_states(more), inputs, tmp_path_factory.mktemp("states") / "states.pt", ("*:load", "*:dt"))
        for more in ("load", "x")
    }


def test_parameters_are_each_loop_s_own(states):
    """One function, but the numbers of two parameters: as arguments they change one state each."""
    kernel = torchferry.load(states["load"])
    inputs = draw(7, 1, "x~1", "y~1", "dt", "load")
    arrays = {name: value.numpy() for name, value in inputs.items()}
    before = kernel.call("forward", arrays)
    named = [p.name for p in kernel.contract.parameters if p.name.endswith(".residual.k")]
    assert len(named) == 2
    changed = []
    for name in named:
        kernel = torchferry.load(states["load"])
        kernel.set_parameter(name, 5.0)
        after = kernel.call("forward", arrays)
        changed.append([state for state in "xy" if not numpy.array_equal(after[state], before[state])])
    assert sorted(changed) == [["x"], ["y"]]


def test_texts_with_other_locals_are_other_loops(tmp_path):
    parts = [torchferry.ImplicitUpdate(Terms(name, name == "y"), [name]) for name in "xy"]
    model = torchferry.ComposedModel(parts, name="terms")
    folder = export(model, draw(4, 0, "x~1", "y~1", "load"), tmp_path / "terms.pt", ("*:load",))
    assert count_loops(folder) == 2
    check_methods(folder, draw(9, 1, "x~1", "y~1", "load"))


def test_a_power_outside_of_the_loop_has_its_products_too(tmp_path):
    """The exponent is the loop's; where the derivative takes the power again, it is a product all the same."""
    inputs = draw(4, 0, "x~1", "dt")
    folder = export(torchferry.ImplicitUpdate(Norton(), ["x"]), inputs, tmp_path / "norton.pt", ("x:residual.k",))
    jacobian = next(folder.glob("*_lanes.h")).read_text().partition("/* jacobian:")[2]
    assert "pow(" in jacobian
    assert jacobian.count("if (g->tf_loop_0.") == 4 * jacobian.count("pow(")
    check_methods(folder, draw(9, 1, "x~1", "dt"))


def test_a_table_that_the_loop_and_the_derivative_read(tmp_path):
    inputs = draw(4, 0, "x~1", "load")
    folder = export(torchferry.ImplicitUpdate(Table(), ["x"]), inputs, tmp_path / "table.pt", ("x:x~1",))
    text = next(p for p in folder.glob("*.c") if not p.name.startswith(("test_", "table_shared"))).read_text()
    assert "g->tf_loop_0.d[" in text.partition("void jacobian_prepare(")[2]
    check_methods(folder, draw(9, 1, "x~1", "load"))


def test_factors_from_outside(tmp_path):
    folder = export(torchferry.ImplicitUpdate(Solve(), ["x"]), draw_systems(4, 0), tmp_path / "solve.pt", ("x:a",))
    assert count_loops(folder) == 1
    for rows in (1, 19):
        check_methods(folder, draw_systems(rows, rows))


def test_a_loop_that_is_not_given_a_number_is_refused(tmp_path, monkeypatch):
    """The control: a method gives its loops zeros in place of the numbers that they read."""
    list_values = MethodWriter._list_values

    def forget(self, i, dtype, count):
        values = list_values(self, i, dtype, count)
        return ["0.0"] * count if dtype == "float64" else values

    monkeypatch.setattr(MethodWriter, "_list_values", forget)
    with pytest.raises(TorchferryError, match=r"differ|mismatch|not equal"):
        torchferry.export(
            two_states("load"),
            output=tmp_path / "states",
            inputs=draw(4, 0, "x~1", "y~1", "dt", "load"),
            formats="c",
        )
    assert not [*tmp_path.glob("states*")]

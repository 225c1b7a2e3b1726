"""Tables that are read where the data says, and searched: short ones as choices, long ones as tables."""

from __future__ import annotations

import ctypes
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy
import pytest
import torch
from kernel_host import resealed
from project import mark_rest_thorough
from torch import nn

import torchferry
from exporter.archive import kernel_container
from exporter.backends.c_kernel import c_source
from exporter.backends.c_kernel.table_lookup import SHORT
from exporter.common.errors import MismatchError
from runtime_checks.report import FAILED
from runtime_checks.runners.kernel_runner import build_library

pytestmark = pytest.mark.thorough

F = torch.float64
# Between the bounds, at them, outside of them, and no number.
POINTS = torch.cat(
    [
        torch.linspace(-1.3, 1.3, 29, dtype=F),
        torch.linspace(-1.0, 1.0, SHORT + 1, dtype=F) ** 3,
        torch.tensor([float("inf"), -float("inf"), float("nan"), 0.0, -0.0], dtype=F),
    ]
)


class Curve(nn.Module):
    """Linear between the points of a table, and beyond its ends."""

    signature = torchferry.Signature.of({"x": ()}, {"y": ()})
    bounds: torch.Tensor
    values: torch.Tensor

    def __init__(self, count: int, *, parameters: bool) -> None:
        super().__init__()
        bounds = torch.linspace(-1.0, 1.0, count, dtype=F) ** 3
        for name, value in (("bounds", bounds), ("values", torch.sin(3 * bounds))):
            if parameters:
                self.register_parameter(name, nn.Parameter(value))
            else:
                self.register_buffer(name, value)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        position = torch.searchsorted(self.bounds, x.contiguous(), right=True).clamp(1, len(self.bounds) - 1)
        low, high = self.bounds[position - 1], self.bounds[position]
        return self.values[position - 1] + (x - low) * (self.values[position] - self.values[position - 1]) / (
            high - low
        )


def exported(model: nn.Module, path: Path, derivatives: Sequence[str] = ("y:x",)) -> tuple:
    torchferry.export(
        model, output=path.with_suffix(".pt"), inputs={"x": POINTS[:29]}, derivatives=derivatives, formats="pt,c"
    )
    return torchferry.load(path), torchferry.load(path.with_suffix(".pt"))


@pytest.mark.parametrize("count", mark_rest_thorough([SHORT, 500], [SHORT + 1]))
@pytest.mark.parametrize("parameters", [True, False])
def test_a_curve(count, parameters, tmp_path):
    kernel, model = exported(Curve(count, parameters=parameters), tmp_path / "curve")
    for points in (POINTS, POINTS[-1:], POINTS[3:4]):
        got = kernel.call("jacobian", {"x": points.numpy()})
        for name, value in model.call("jacobian", {"x": points}).items():
            assert numpy.allclose(got[name], value.numpy(), rtol=1e-13, atol=1e-13, equal_nan=True), name
        (same,) = kernel.call("forward", {"x": points.numpy()}).values()
        assert numpy.array_equal(same, model(points)[0].numpy(), equal_nan=True)
    (lanes,) = (tmp_path / "curve").glob("*_lanes.h")
    # A long table costs no more than a short one does.
    assert len(lanes.read_text().splitlines()) < 400


def test_a_table_that_is_set(tmp_path):
    kernel, model = exported(Curve(40, parameters=True), tmp_path / "curve")
    moved = numpy.sort(numpy.random.default_rng(0).normal(size=40))
    kernel.set_parameter("bounds", moved)
    model.set_parameter("bounds", torch.from_numpy(moved))
    (got,) = kernel.call("forward", {"x": POINTS.numpy()}).values()
    assert numpy.array_equal(got, model(POINTS)[0].numpy(), equal_nan=True)


class Read(nn.Module):
    """A number of a plane by two places, the second of which counts from the end, and how many bounds are below."""

    signature = torchferry.Signature.of({"x": ()}, {"y": (), "n": (), "m": ()})
    plane: torch.Tensor
    bounds: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("plane", torch.randn(7, 5, generator=torch.Generator().manual_seed(0), dtype=F))
        self.register_buffer("bounds", torch.linspace(-1.0, 1.0, 21, dtype=F).round(decimals=1))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        first = (x * 3 + 3).nan_to_num(0.0, 0.0, 0.0).to(torch.int64).clamp(0, 6)
        second = (x * 2 - 2).nan_to_num(-1.0, -1.0, -1.0).to(torch.int64).clamp(-5, -1)
        below = torch.searchsorted(self.bounds, x.contiguous(), side="left", out_int32=True)
        return self.plane[first, second], below.to(F), torch.bucketize(x, self.bounds, right=True).to(F)


def test_places_in_two_dimensions(tmp_path):
    path = tmp_path / "read"
    torchferry.export(Read(), output=path.with_suffix(".pt"), inputs={"x": POINTS[:29]}, formats="pt,c")
    kernel, model = torchferry.load(path), torchferry.load(path.with_suffix(".pt"))
    points = torch.cat([POINTS, torch.linspace(-1.0, 1.0, 21, dtype=F).round(decimals=1)])
    for got, wanted in zip(kernel.call("forward", {"x": points.numpy()}).values(), model(points), strict=True):
        assert numpy.array_equal(got, wanted.numpy(), equal_nan=True)


def test_derivatives_by_the_numbers_of_a_table(tmp_path):
    kernel, model = exported(Curve(SHORT + 1, parameters=True), tmp_path / "curve", ["y:values", "y:x"])
    got = kernel.call("jacobian", {"x": POINTS[:-5].numpy()})
    for name, value in model.call("jacobian", {"x": POINTS[:-5]}).items():
        assert numpy.allclose(got[name], value.numpy(), rtol=1e-13, atol=1e-13), name


class Resampled(nn.Module):
    """Tables that are made of parameters by reads of tables, and by a linear system."""

    signature = torchferry.Signature.of({"x": ()}, {"y": (), "z": ()})

    def __init__(self) -> None:
        super().__init__()
        self.bounds = nn.Parameter(torch.linspace(-1.0, 1.0, 12, dtype=F))
        self.values = nn.Parameter(torch.arange(12, dtype=F))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        points = 0.9 * self.bounds[:10]
        read = self.values[torch.searchsorted(self.bounds, points).clamp(0, 11)]
        matrix = torch.eye(12, dtype=F) * self.values.sum() + 1.0
        result = torch.linalg.solve_ex(matrix, self.values)[0]
        position = torch.searchsorted(self.bounds, x.contiguous())
        return read[position.clamp(0, 9)], result[position.clamp(0, 11)]


def test_tables_that_are_computed(tmp_path):
    path = tmp_path / "resampled"
    torchferry.export(Resampled(), output=path.with_suffix(".pt"), inputs={"x": POINTS[:29]}, formats="pt,c")
    kernel, model = torchferry.load(path), torchferry.load(path.with_suffix(".pt"))
    arguments = {"bounds": torch.linspace(-2.0, 1.0, 12, dtype=F), "values": torch.linspace(1.0, 3.0, 12, dtype=F) ** 2}
    for name, value in arguments.items():
        kernel.set_parameter(name, value.numpy())
        model.set_parameter(name, value)
    for points in (POINTS, POINTS[:1]):
        got = kernel.call("forward", {"x": points.numpy()})
        for name, value in model.call("forward", {"x": points}).items():
            assert numpy.allclose(got[name], value.numpy(), rtol=1e-12, atol=0.0), name


class Long(nn.Module):
    signature = torchferry.Signature.of({"x": ()}, {"y": ()})

    def __init__(self, factor: float, count: int) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.linspace(-1.0, 1.0, count, dtype=F))
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        values = self.values if self.factor == 1.0 else self.factor * self.values
        return values[torch.searchsorted(values, x.contiguous()).clamp(0, len(values) - 1)]


@pytest.mark.parametrize(("factor", "count"), [(1.0, 40_000), (2.0, 2_000)])
def test_a_long_table_is_not_on_the_stack(factor, count, monkeypatch, tmp_path):
    """One of parameters is read in its place, one that is computed is in the caller's workspace."""
    monkeypatch.setattr(c_source, "STACK", 8_000)
    kernel, model = exported(Long(factor, count), tmp_path / "long", derivatives=())
    workspace = kernel_container.read_manifest(tmp_path / "long")["workspace"]["forward"]
    assert bool(workspace) == (factor != 1.0)
    for rows in (1, len(POINTS)):
        (same,) = kernel.call("forward", {"x": POINTS[:rows].numpy()}).values()
        assert numpy.array_equal(same, model(POINTS[:rows])[0].numpy())


class Both(nn.Module):
    """A table that is a right side too, and a system whose matrix has its numbers."""

    signature = torchferry.Signature.of({"x": (), "a": (12, 12)}, {"y": (), "z": (12,), "w": (3,)})

    def __init__(self) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.linspace(1.0, 2.0, 12, dtype=F) ** 2)

    def forward(self, x: torch.Tensor, a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        position = (6 * x + 6).nan_to_num(0.0).clamp(0, 11).to(torch.int64)
        matrix = self.values[:9].reshape(3, 3) + torch.eye(3, dtype=F)
        small = torch.linalg.solve_ex(matrix, a[..., :3, 0].unsqueeze(-1))[0].squeeze(-1)
        return self.values[position], torch.linalg.solve_ex(a, self.values.expand(x.shape[0], 12))[0], small


def test_numbers_of_a_table_in_systems(tmp_path):
    def drawn(rows: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(rows)
        a = torch.rand(rows, 12, 12, dtype=F, generator=generator) + 3 * torch.eye(12, dtype=F)
        return {"x": 2 * torch.rand(rows, dtype=F, generator=generator) - 1, "a": a}

    path = tmp_path / "both"
    torchferry.export(Both(), output=path.with_suffix(".pt"), inputs=drawn(5), formats="pt,c")
    kernel, model = torchferry.load(path), torchferry.load(path.with_suffix(".pt"))
    arguments = drawn(21)
    got = kernel.call("forward", {name: value.numpy() for name, value in arguments.items()})
    for name, value in model.call("forward", arguments).items():
        assert numpy.allclose(got[name], value.numpy(), rtol=1e-11, atol=1e-12), name


def test_an_output_in_the_place_of_a_table(tmp_path):
    """Its numbers are read while outputs are written."""
    exported(Long(1.0, 40_000), tmp_path / "long", derivatives=())
    opened = kernel_container.read(tmp_path / "long")
    function = getattr(ctypes.CDLL(str(build_library(opened))), f"{opened.name}_forward")
    function.argtypes = [ctypes.c_ssize_t, *[ctypes.c_void_p] * 5]
    values, x, y = numpy.linspace(-1.0, 1.0, 40_000), numpy.zeros(4), numpy.zeros(4)

    def called(to: int) -> int:
        arrays = [(ctypes.c_void_p * 2)(position, None) for position in (x.ctypes.data, to)]
        return function(4, arrays[0], arrays[1], (ctypes.c_void_p * 1)(values.ctypes.data), None, None)

    assert called(y.ctypes.data) == 0
    assert called(values.ctypes.data + 8 * 39_996) == -3
    assert called(values.ctypes.data) == -3


class Stiffening(nn.Module):
    """``stress(x) + weight(w) - g``: a table that is read in each step of Newton's method, at the unknown's place, and
    one in single precision by a table of whole numbers."""

    signature = torchferry.Signature.of({"x": (), "x~1": (), "g": (), "w": ()}, {"x_residual": ()})
    weights: torch.Tensor
    order: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.bounds = nn.Parameter(torch.linspace(-2.0, 2.0, 41, dtype=F))
        self.stress = nn.Parameter(2.0 * self.bounds.detach())
        self.register_buffer("weights", torch.linspace(0.0, 1e-2, 41, dtype=torch.float32))
        self.register_buffer("order", torch.randperm(41, generator=torch.Generator().manual_seed(0)))

    def forward(self, x: torch.Tensor, old: torch.Tensor, g: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        position = torch.searchsorted(self.bounds, x.contiguous(), right=True).clamp(1, 40)
        slope = (self.stress[position] - self.stress[position - 1]) / (
            self.bounds[position] - self.bounds[position - 1]
        )
        place = self.order[torch.searchsorted(self.bounds, w.contiguous()).clamp(0, 40)]
        return (
            self.stress[position - 1]
            + (x - self.bounds[position - 1]) * slope
            + self.weights[place].to(F)
            - g
            - 0.1 * old
        )


@pytest.mark.thorough
def test_a_table_in_a_newton_loop(tmp_path):
    generator = torch.Generator().manual_seed(1)
    inputs = {n: torch.rand(13, generator=generator, dtype=F) - 0.5 for n in ("x~1", "g", "w")}
    path = tmp_path / "stiffening"
    model = torchferry.ImplicitUpdate(Stiffening(), ["x"])
    torchferry.export(model, output=path.with_suffix(".pt"), inputs=inputs, derivatives=("x:g",), formats="pt,c")
    # Tables are not copied: settings alone are.
    source = (path / f"{kernel_container.read(path).name}.c").read_text()
    structures = dict(re.findall(r"struct (\w+)_uniform \{(.*?)\}", source, re.S))
    assert structures.keys() >= {"tf_loop_0", "forward", "jacobian"}
    assert "const void *t[2]" in structures["tf_loop_0"]
    for text in structures.values():
        assert int((re.findall(r"double d\[(\d+)\]", text) or [0])[0]) < 41
    kernel, archive = torchferry.load(path), torchferry.load(path.with_suffix(".pt"))
    for rows in (1, 16, 37):
        arguments = {n: 2 * torch.rand(rows, generator=generator, dtype=F) - 1 for n in inputs}
        wanted = archive.call("jacobian", arguments)
        for name, value in kernel.call("jacobian", {n: v.numpy() for n, v in arguments.items()}).items():
            assert numpy.allclose(value, wanted[name].numpy(), rtol=1e-13, atol=1e-14), name
        assert (kernel.status == 0).all()


class Sorted(nn.Module):
    signature = torchferry.Signature.of({"x": ()}, {"y": ()})
    order: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("bounds", torch.tensor([2.0, 0.0, 1.0], dtype=F))
        self.register_buffer("order", torch.tensor([1, 2, 0]))

    bounds: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.searchsorted(self.bounds, x.contiguous(), sorter=self.order).to(F)


def test_a_table_in_another_order(tmp_path):
    torchferry.export(Sorted(), output=tmp_path / "sorted", inputs={"x": POINTS[:29]}, formats="c")
    got = torchferry.load(tmp_path / "sorted").call("forward", {"x": POINTS.numpy()})["y"]
    assert torch.equal(torch.as_tensor(got), Sorted()(POINTS))


@pytest.mark.parametrize(
    ("ending", "pattern", "replacement"),
    [
        (".c", r"to = count;", "to = count / 2;"),
        (".c", r"numbers\[middle\] > x", "numbers[middle] >= x"),
        ("_lanes.h", r"\(forward_table_(\d+)\)\[", r"(forward_table_\1)[0 * "),
    ],
    ids=["half of a table", "the wrong side of a bound", "always the first number"],
)
def test_a_planted_fault_is_caught(ending, pattern, replacement, tmp_path):
    path = tmp_path / "read"
    at_bounds = {"x": torch.linspace(-1.0, 1.0, 21, dtype=F).round(decimals=1)}
    torchferry.export(Read(), output=path, inputs=at_bounds, formats="c")
    copy = Path(shutil.copytree(path, tmp_path / "faulty"))

    def change(files: dict[str, bytes]) -> None:
        (name,) = (n for n in files if n.endswith(ending) and not n.startswith("test_") and not n.endswith("_shared.c"))
        text, count = re.subn(pattern, replacement, files[name].decode())
        assert count
        files[name] = text.encode()

    resealed(copy, change)
    with pytest.raises(MismatchError) as caught:
        torchferry.verify(copy, trust="native")
    failed = {c.check for c in caught.value.report.checks if c.verdict == FAILED}
    assert failed & {"stored cases", "batch sizes"}, failed

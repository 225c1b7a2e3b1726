"""Derivatives in a loop over directions against those that have terms for each."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy
import pytest
import torch
from cubic_models import turned, unordered
from hypothesis import given
from hypothesis import strategies as st
from kernel_host import Direct, resealed
from project import ARTIFACTS, mark_rest_thorough, skip_checks
from torch import nn

import torchferry
from exporter.archive import kernel_container, pt_archive
from exporter.backends.backend import KernelOptions
from exporter.backends.c_kernel import direction_batching
from exporter.backends.c_kernel.c_source import generate_sources
from exporter.backends.c_kernel.expression_graph import COLUMNS
from exporter.backends.c_kernel.lowering import ArchiveLowering
from exporter.common.errors import MismatchError
from exporter.graph.loading import ScriptedModule, load_module
from runtime_checks.report import FAILED

pytestmark = pytest.mark.thorough

F = torch.float64
SIZE = 12


class Chain(nn.Module):
    """Springs between neighbours, ``n`` of them with a weak one to the ground: each residual depends on three."""

    signature = torchferry.Signature.of({"x": (SIZE,), "x~1": (SIZE,), "pull": (SIZE,)}, {"x_residual": (SIZE,)})

    def forward(self, x: torch.Tensor, old: torch.Tensor, pull: torch.Tensor) -> torch.Tensor:
        stretch = torch.diff(x, dim=-1, prepend=0.0 * x[..., :1])
        force = stretch + stretch**3
        return force - torch.cat([force[..., 1:], 0.1 * x[..., -1:]], -1) + 0.5 * (x - old) - pull


def chained(rows: int, seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "x~1": 0.3 * torch.randn(rows, SIZE, generator=generator, dtype=F),
        "pull": torch.randn(rows, SIZE, generator=generator, dtype=F),
    }


@pytest.fixture
def always(monkeypatch):
    """Every derivative in a loop."""
    monkeypatch.setattr(direction_batching, "MANY", 0)


@pytest.fixture(scope="module")
def chain(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("columns") / "chain.pt"
    model = torchferry.ImplicitUpdate(Chain(), ["x"])
    with skip_checks():
        torchferry.export(model, output=path, inputs=chained(12, 0), derivatives="x:pull")
    return path


def groups(path: Path) -> list[int]:
    """How many there are of each loop over directions."""
    lowered = ArchiveLowering(ScriptedModule(load_module(path)), pt_archive.read(path).contract)
    for method in sorted(lowered._contract.methods, key=lambda name: name != "forward"):
        lowered.lower_method(method)
    return [len(t.extra[0].groups) for t in lowered.graph.nodes if t.op == COLUMNS]


def given_for(path: Path, rows: int) -> dict[str, numpy.ndarray]:
    """Between the values of the cases, and not at them."""
    opened = pt_archive.read(path)
    case = next(c for c in opened.cases() if c.method == "forward" and c.name == "warmup")
    weights = torch.rand(rows, len(case.inputs[0]), generator=torch.Generator().manual_seed(rows), dtype=F) ** 4
    weights = weights / weights.sum(1, keepdim=True)
    names = opened.contract.methods["forward"].inputs
    return {n: numpy.ascontiguousarray(torch.tensordot(weights, v, 1)) for n, v in zip(names, case.inputs, strict=True)}


@pytest.mark.parametrize("name", mark_rest_thorough(["return_map", "robertson"], ["perzyna"]))
def test_models_have_the_numbers_of_terms_for_each(name, tmp_path, monkeypatch):
    path = Path(shutil.copy(ARTIFACTS / f"{name}.pt", tmp_path))
    torchferry.convert(path, tmp_path / "each", to="c")
    assert not groups(path)
    monkeypatch.setattr(direction_batching, "MANY", 0)
    torchferry.convert(path, tmp_path / "loop", to="c")
    assert groups(path)
    each, loop = (torchferry.load(tmp_path / kind) for kind in ("each", "loop"))
    for rows in (1, 5, 33):
        arguments = given_for(path, rows)
        for method in ("forward", "jacobian"):
            wanted, got = getattr(each, method)(**arguments), getattr(loop, method)(**arguments)
            for a, b in zip(wanted.values(), got.values(), strict=True):
                numpy.testing.assert_allclose(b, a, rtol=1e-11, atol=1e-13 * max(1.0, float(numpy.abs(a).max())))


@pytest.mark.usefixtures("always")
def test_directions_that_do_not_meet_are_taken_at_once(chain, tmp_path):
    torchferry.convert(chain, tmp_path / "kernel", to="c")
    # The matrix is tridiagonal; the solution depends on every load.
    assert sorted(set(groups(chain))) == [3, SIZE]
    arguments = chained(40, 3)
    result = torchferry.load(tmp_path / "kernel").forward(**{k: v.numpy() for k, v in arguments.items()})
    wanted = torchferry.load(chain).call("forward", arguments)
    numpy.testing.assert_allclose(result["x"], wanted["x"].numpy(), rtol=1e-12)


def test_a_loop_is_shorter_than_terms_for_each(chain, monkeypatch):
    opened = pt_archive.read(chain)
    each = generate_sources(ScriptedModule(load_module(chain)), opened.contract, KernelOptions()).operations
    monkeypatch.setattr(direction_batching, "MANY", 0)
    loop = generate_sources(ScriptedModule(load_module(chain)), opened.contract, KernelOptions()).operations
    assert loop["jacobian"] < 0.6 * each["jacobian"]


@pytest.mark.thorough
@pytest.mark.usefixtures("always")
def test_systems_that_exchange_rows(tmp_path):
    """The matrix is not symmetric, and no two elements exchange the same rows."""
    torchferry.export(unordered(9), output=tmp_path / "rows.pt", formats="pt,c")
    assert set(groups(tmp_path / "rows.pt")) == {9}
    arguments = turned(9, 50, 5)
    result = torchferry.load(tmp_path / "rows").forward(**{k: v.numpy() for k, v in arguments.items()})
    wanted = torchferry.load(tmp_path / "rows.pt").call("forward", arguments)
    numpy.testing.assert_allclose(result["x"], wanted["x"].numpy(), rtol=1e-9, atol=1e-14)


@pytest.mark.usefixtures("always")
def test_functions_against_autograd():
    x = torch.randn(21, 4, generator=torch.Generator().manual_seed(0), dtype=F)

    def function(x: torch.Tensor) -> tuple[torch.Tensor]:
        # A number that depends on nothing, one on all, and some on neighbours.
        return (
            torch.cat([0.0 * x[:, :1] + 2.0, (x**2).sum(1, keepdim=True).sqrt(), torch.sin(x[:, 1:] * x[:, :-1])], 1),
        )

    wanted = torch.vmap(torch.func.jacrev(lambda row: function(row[None])[0][0]))(x)
    (result,) = Direct(function, {"x": x}, jacobian=True)(x)
    torch.testing.assert_close(result, wanted, rtol=1e-13, atol=1e-14)


@pytest.mark.usefixtures("always")
def test_columns_that_change_places_are_caught(chain, tmp_path):
    """The control: the derivatives by two loads exchanged."""
    torchferry.convert(chain, tmp_path / "kernel", to="c")

    def change(files: dict[str, bytes]) -> None:
        name = f"{kernel_container.read(tmp_path / 'kernel').name}_lanes.h"
        text = files[name].decode()
        assert "found[e * 12 + k]" in text
        files[name] = text.replace("found[e * 12 + k]", "found[e * 12 + (k ^ 1)]").encode()

    resealed(tmp_path / "kernel", change)
    with pytest.raises(MismatchError) as caught:
        torchferry.verify(tmp_path / "kernel", trust="native")
    assert "stored cases" in {c.check for c in caught.value.report.checks if c.verdict == FAILED}


@given(st.lists(st.integers(0, 2**9 - 1), min_size=1, max_size=9))
def test_groups_hold_each_direction_once_and_never_two_of_a_number(depends):
    result = direction_batching.group_directions(depends, 9)
    assert sorted(k for group in result for k in group) == list(range(9))
    assert all((bits & sum(1 << k for k in group)).bit_count() <= 1 for bits in depends for group in result)

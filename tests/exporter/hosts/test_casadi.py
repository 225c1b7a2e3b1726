"""CasADi's external functions: numbers, sparsity, a root finder, an identification with Ipopt."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from material_hosts import wrap
from project import ROOT, make_once, mark_thorough_after

import torchferry
from torchferry.cli.app import run

EXAMPLE = ROOT / "examples" / "hosts" / "identify_casadi.py"


@pytest.fixture(scope="module")
def matrices(matrix_kernel: Path, shared: Path) -> Path:
    return make_once(shared / "casadi matrices", lambda folder: wrap("casadi", matrix_kernel, folder / "casadi", None))


def load_function(folder: Path) -> Any:
    import casadi

    return casadi.external("Matrices", str(folder / "casadi" / "libMatrices_casadi.so"))


def draw() -> list[np.ndarray]:
    generator = np.random.default_rng(3)
    return [generator.uniform(-1, 1, shape) for shape in ((2, 3), (3,), (), (2, 2, 2))]


def test_the_self_test_passes(matrices):
    command = ["gcc", "-g", "-O1", "-std=c99", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined"]
    files = ["test_Matrices_casadi.c", "Matrices_casadi.c", "kernel.o"]
    subprocess.run([*command, *files, "-o", "sanitized", "-lm"], cwd=matrices / "casadi", check=True)
    result = subprocess.run(["./sanitized"], cwd=matrices / "casadi", capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "rows of cases, " in result.stdout


def test_numbers_and_shapes(matrices, matrix_kernel):
    function = load_function(matrices)
    assert [function.size_in(i) for i in range(5)] == [(2, 3), (3, 1), (1, 1), (8, 1), (3, 1)]
    assert function.name_in() == ["matrix", "vector", "number", "cube", "weight"]
    assert function.name_out() == ["product", "square", "sum"]
    inputs = draw()
    model = torchferry.load(matrix_kernel)
    wanted = [value[0] for value in model(*(x[None] for x in inputs))]
    outputs = function(inputs[0], inputs[1], inputs[2], inputs[3].reshape(-1), [1.0, 2.0, 3.0])
    for got, value in zip(outputs, wanted, strict=True):
        assert np.allclose(np.array(got).reshape(value.shape), value, rtol=1e-14)
    other = function(inputs[0], inputs[1], inputs[2], inputs[3].reshape(-1), [2.0, 4.0, 6.0])
    assert np.allclose(np.array(other[0]), 2 * wanted[0], rtol=1e-14)


def test_the_jacobian_and_its_sparsity(matrices):
    import casadi

    function = load_function(matrices)
    symbols = [casadi.MX.sym(n, *function.size_in(i)) for i, n in enumerate(function.name_in())]
    product, square, total = function(*symbols)
    x = draw()
    point = [x[0], x[1], x[2], x[3].reshape(-1), [1.0, 2.0, 3.0]]
    for output in (product, square, total):
        for i, symbol in enumerate(symbols):
            block = casadi.Function("block", symbols, [casadi.jacobian(output, symbol)])
            value = np.array(block(*point))
            numeric = np.empty_like(value)
            forward = casadi.Function("value", symbols, [casadi.vec(output)])
            for j in range(value.shape[1]):
                moved = np.zeros(value.shape[1])
                moved[j] = 1e-6
                moved = moved.reshape(np.shape(point[i]) or (1,), order="F")
                ends = [
                    forward(*(np.array(a) + s * moved if k == i else a for k, a in enumerate(point)))
                    for s in (1.0, -1.0)
                ]
                numeric[:, j] = np.array(ends[0] - ends[1]).ravel() / 2e-6
            assert np.allclose(value, numeric, atol=1e-8)
    # What the contract says is zero has no numbers.
    assert casadi.jacobian(square, symbols[1]).nnz() == 0
    assert casadi.jacobian(product, symbols[3]).nnz() == 0
    assert casadi.jacobian(product, symbols[1]).nnz() > 0


@pytest.mark.parametrize(
    ("right", "wrong"),
    mark_thorough_after(
        2,
        [
            ("in_0[] = { 0, 1, 2 }", "in_0[] = { 0, 3, 1 }"),
            ("out_0[] = { 0, 1, 3 }", "out_0[] = { 0, 2, 1 }"),
            ("zero = 0.0;", "zero = 1.0;"),
        ],
    ),
)
def test_a_planted_fault_is_seen(matrix_kernel, tmp_path, right, wrong):
    wrapped = wrap("casadi", matrix_kernel, tmp_path / "w", None)
    wrapped.plant(right, wrong)
    assert wrapped.run_self_test().returncode == 1


def test_what_is_not_finite_fails(matrices):
    function = load_function(matrices)
    with pytest.raises(RuntimeError, match="Matrices"):
        function(np.full((2, 3), np.nan), [1.0, 1.0, 1.0], 1.0, np.ones(8), [1.0, 2.0, 3.0])


def test_models_that_do_not_fit(solid, tmp_path, capfd):
    assert run(["wrap", "casadi", str(solid.with_suffix("")), "-o", str(tmp_path / "not")]) == 2
    error = capfd.readouterr().err
    assert "without d stress / d strain~1" in error
    assert "--derivative all" in error
    assert not (tmp_path / "not").exists()


@pytest.mark.thorough
def test_the_identification_finds_the_parameters(tmp_path):
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(EXAMPLE)]
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert "yield stress 300.0, hardening 5000" in result.stdout

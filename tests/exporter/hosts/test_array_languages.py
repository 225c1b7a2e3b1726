"""R and Octave: arrays that lie column by column; parameters; what is wrong."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from material_hosts import make, plant
from project import make_once, need

import torchferry
from exporter.hosts.registry import wrap_kernel

PROGRAMS = {"r": "Rscript", "octave": "mkoctfile"}


@pytest.fixture(params=PROGRAMS)
def host(request) -> str:
    program = PROGRAMS[request.param]
    need(shutil.which(program) is not None, f"{program} is not installed")
    return request.param


def wrap(host: str, kernel: Path, shared: Path, name: str) -> Path:
    return make_once(shared / f"{host} {name}", lambda f: wrap_kernel(host, kernel, f / "w", None)) / "w"


@pytest.mark.parametrize("name", ["matrices", "solid"])
def test_the_self_test_passes(host, matrix_kernel, solid, shared, name):
    kernel = {"matrices": matrix_kernel, "solid": solid.with_suffix("")}[name]
    result = make(wrap(host, kernel, shared, name), "test")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "rows of cases" in result.stdout


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("strides[0][2] = counts[0] * 2;", "strides[0][2] = counts[0] * 1;"),
        ("strides[INPUTS + 0][1] = count * 1;", "strides[INPUTS + 0][1] = count * 2;"),
        ("[0] = counts[1] == 1 ? 0 : 1;", "[0] = 0;"),
    ],
)
def test_a_planted_fault_is_seen(host, matrix_kernel, tmp_path, right, wrong):
    wrap_kernel(host, matrix_kernel, tmp_path / "w", None)
    plant(tmp_path / "w" / f"Matrices_{host}.c", right, wrong)
    assert make(tmp_path / "w", "test").returncode != 0


def test_rows_parameters_and_shapes(host, matrix_kernel, shared):
    folder = wrap(host, matrix_kernel, shared, "matrices")
    assert make(folder).returncode == 0
    script = {
        "r": 'source("Matrices.R")\nm <- array(1:12 / 10, c(2, 2, 3))\nv <- matrix(c(1, 2, 3), 1)\n'
        "x <- Matrices(m, v, c(2, 3), array(1, c(2, 2, 2, 2)), parameters = list(weight = c(2, 2, 2)))\n"
        'cat(dim(x$product), x$product, x$square, sprintf("%.17g", x$sum), "\\n")\n',
        "octave": "m = reshape((1:12) / 10, [2, 2, 3]);\n"
        'p = struct("weight", [2, 2, 2]);\n'
        '[a, b, c] = Matrices("forward", m, [1, 2, 3], [2; 3], ones(2, 2, 2, 2), p);\n'
        'printf("%.17g ", size(a), a, b, c); printf("\\n");\n',
    }[host]
    command = {"r": ["Rscript", "--vanilla", "-e", script], "octave": ["octave-cli", "--norc", "--eval", script]}[host]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    numbers = [float(word) for word in result.stdout.split()]
    matrix = np.arange(1, 13).reshape((2, 2, 3), order="F") / 10
    model = torchferry.load(matrix_kernel)
    model.set_parameter("weight", np.array([2.0, 2.0, 2.0]))
    wanted = model(matrix, np.array([[1.0, 2.0, 3.0]] * 2), np.array([2.0, 3.0]), np.ones((2, 2, 2, 2)))
    flat = [float(v) for value in wanted for v in value.ravel(order="F")]
    assert numbers[:3] == [2, 3, 2]
    assert np.allclose(numbers[3:], flat, rtol=1e-6)

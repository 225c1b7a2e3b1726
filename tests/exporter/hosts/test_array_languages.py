"""R and Octave: arrays that lie column by column; parameters; what is wrong."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from material_hosts import export_function, make, plant
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


def run_script(host: str, folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    command = {"r": ["Rscript", "--vanilla", "-e", script], "octave": ["octave-cli", "--norc", "--eval", script]}[host]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


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
    result = run_script(host, folder, script)
    assert result.returncode == 0, result.stderr
    numbers = [float(word) for word in result.stdout.split()]
    matrix = np.arange(1, 13).reshape((2, 2, 3), order="F") / 10
    model = torchferry.load(matrix_kernel)
    model.set_parameter("weight", np.array([2.0, 2.0, 2.0]))
    wanted = model(matrix, np.array([[1.0, 2.0, 3.0]] * 2), np.array([2.0, 3.0]), np.ones((2, 2, 2, 2)))
    flat = [float(v) for value in wanted for v in value.ravel(order="F")]
    assert numbers[:3] == [2, 3, 2]
    assert np.allclose(numbers[3:], flat, rtol=1e-6)


@pytest.mark.parametrize(
    ("shape", "rows"),
    [
        ((4, 2, 3), 4),
        ((2, 3), 1),
        ((1, 2, 3), 1),
        ((3, 2), 0),
        ((6,), 0),
        ((2, 3, 2), 0),
        ((4, 2, 3, 1), 4),
        ((2, 6), 0),
    ],
)
def test_dimensions_are_rows_and_the_own_ones(host, matrix_kernel, shared, shape, rows):
    """Numbers that only could be divided among elements are refused."""
    folder = wrap(host, matrix_kernel, shared, "matrices")
    assert make(folder).returncode == 0
    sizes = ", ".join(map(str, shape))
    script = {
        "r": f'source("Matrices.R")\nx <- Matrices(array(1, c({sizes})), c(1, 2, 3), 2, array(1, c(2, 2, 2)))\n'
        "cat(dim(x$product)[1])\n",
        "octave": f"[a, b, c] = Matrices('forward', ones([{sizes}{', 1' if len(shape) == 1 else ''}]), [1, 2, 3], 2, "
        "ones(2, 2, 2));\nprintf('%d', size(a, 1));\n",
    }[host]
    result = run_script(host, folder, script)
    if rows:
        assert result.stdout == str(rows), result.stderr
    else:
        assert result.returncode != 0
        assert "has other dimensions than rows x 2 x 3" in result.stderr


def test_a_vector_is_elements_where_a_variable_is_one_number(host, matrix_kernel, shared):
    folder = wrap(host, matrix_kernel, shared, "matrices")
    assert make(folder).returncode == 0
    script = {
        "r": 'source("Matrices.R")\nx <- Matrices(array(1, c(2, 3)), c(1, 2, 3), c(2, 3, 4), array(1, c(2, 2, 2)))\n'
        "cat(x$square)\n",
        "octave": "[a, b] = Matrices('forward', ones(2, 3), [1; 2; 3], [2, 3, 4], ones(2, 2, 2));\nprintf('%d ', b);\n",
    }[host]
    result = run_script(host, folder, script)
    assert result.stdout.split() == ["4", "9", "16"], result.stderr


def test_an_input_may_have_any_name(tmp_path):
    """Also that of what the function keeps."""
    need(shutil.which("Rscript") is not None, "Rscript is not installed")
    kernel = export_function(tmp_path, "Lin", "library * 2.0", of="library", to="inputs")
    wrap_kernel("r", kernel, tmp_path / "r", None)
    result = make(tmp_path / "r", "test")
    assert result.returncode == 0, result.stdout + result.stderr


def test_two_functions_of_one_name_stay_apart(tmp_path):
    need(shutil.which("Rscript") is not None, "Rscript is not installed")
    for factor in (3, 7):
        folder = tmp_path / str(factor)
        folder.mkdir()
        wrap_kernel("r", export_function(folder, "Lin", f"x * {factor}.0"), folder / "r", None)
        assert make(folder / "r").returncode == 0
    script = 'source("3/r/Lin.R", chdir = TRUE)\nfirst <- Lin\nsource("7/r/Lin.R", chdir = TRUE)\n'
    command = ["Rscript", "--vanilla", "-e", script + "cat(first(1)$y, Lin(1)$y)"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == "3 7", done.stderr

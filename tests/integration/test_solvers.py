"""The example solvers in C++, C and Fortran against the same integration in eager mode."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
import torch
from native_build import SOLVERS, need_fortran, programs, run
from project import export_unverified, mark_rest_thorough
from tampering import change_cases

from runtime_checks import native_build as library

SOURCE = f"{SOLVERS / 'decay.py'}:make_model"


@pytest.fixture(scope="session")
def solvers(tmp_path_factory) -> Path:
    base = tmp_path_factory.getbasetemp()
    return programs(SOLVERS, base.parent if base.name.startswith("popen-") else base)


@pytest.fixture(scope="session")
def decay(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("decay") / "decay.pt"
    export_unverified(SOURCE, path)
    return path


@pytest.fixture(scope="module")
def eager() -> torch.Tensor:
    sys.path.insert(0, str(SOLVERS))
    try:
        from decay import integrate  # pyright: ignore[reportMissingImports]
    finally:
        sys.path.remove(str(SOLVERS))
    return torch.tensor(integrate(), dtype=torch.float64).T


@pytest.mark.parametrize("program", mark_rest_thorough(["decay"], ["decay_cpp", "decay_fortran"]))
def test_a_solver_reproduces_eager_mode(program, solvers, decay, eager):
    if program == "decay_fortran":
        need_fortran()
    code, out, text = run(solvers / program, decay)
    assert code == 0, text
    result = torch.tensor([[float(x) for x in line.split()] for line in out.decode().splitlines()], dtype=torch.float64)
    assert result.shape == (4, 2)
    torch.testing.assert_close(result, eager, rtol=1e-12, atol=0)


@pytest.mark.parametrize("program", mark_rest_thorough(["decay"], ["decay_cpp", "decay_fortran"]))
def test_a_solver_stops_where_the_numbers_are_not_those_of_eager_mode(program, solvers, decay, tmp_path):
    if program == "decay_fortran":
        need_fortran()
    wrong = tmp_path / "wrong.pt"
    wrong.write_bytes(decay.read_bytes())

    def change(cases):
        cases["warmup/forward/out/0"][0] *= 1 + 1e-6

    change_cases(wrong, change)
    code, _, text = run(solvers / program, wrong)
    assert code == 1
    assert "differ" in text
    assert run(solvers / program, tmp_path / "nowhere.pt")[0] == 1


CLIENT = """cmake_minimum_required(VERSION 3.18)
project(client LANGUAGES C)
find_package(torchferry REQUIRED)
file(WRITE "${CMAKE_BINARY_DIR}/torch.txt" "${TORCHFERRY_TORCH}")
"""


def test_a_build_folder_may_see_another_torch_later(tmp_path):
    """CMake keeps what stands in its cache; the folder of torch is that of the library that is found now."""
    cmake, prefix, torch = library.find_tool("cmake"), library.build(), library.torch_folder()
    (tmp_path / "CMakeLists.txt").write_text(CLIENT)
    (tmp_path / "torch").symlink_to(torch)
    other = Path(shutil.copytree(prefix, tmp_path / "other", symlinks=True))
    config = other / "lib" / "cmake" / "torchferry" / "torchferryConfig.cmake"
    config.write_text(config.read_text().replace(str(torch), str(tmp_path / "torch")))
    for folder, expected in ((prefix, torch), (other, tmp_path / "torch")):
        where = f"-Dtorchferry_DIR={folder / 'lib' / 'cmake' / 'torchferry'}"
        library.run_tool([cmake, "-S", str(tmp_path), "-B", str(tmp_path / "build"), where])
        assert (tmp_path / "build" / "torch.txt").read_text() == str(expected)

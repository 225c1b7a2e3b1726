"""Solvers that have a kernel and no torch: in C, and Abaqus' UMAT in Fortran."""

from __future__ import annotations

import math
import shutil
import subprocess
from pathlib import Path

import numpy
import pytest
import torch
from project import ROOT, need

import torchferry
from torchferry.cli.app import run

SOLVERS = ROOT / "examples" / "solvers"
F = torch.float64
FORTRAN = ["gfortran", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-Wno-unused-dummy-argument", "-fcheck=all"]
# Stops where a host would.
TRAPS = ["-ffpe-trap=zero,invalid,overflow"]


@pytest.fixture(scope="module")
def umat(solid, tmp_path_factory) -> Path:
    need(shutil.which("gfortran") is not None, "gfortran is not installed")
    folder = Path(shutil.copytree(solid.with_suffix(""), tmp_path_factory.mktemp("umat") / "model"))
    assert run(["umat", str(folder)]) == 0
    subprocess.run(["gcc", "-O2", "-c", "make_model.c"], cwd=folder, check=True)
    return folder


def program(folder: Path, main: Path, output: Path, umat: str = "make_model_umat.f90") -> Path:
    files = [str(folder / "make_model.o"), str(folder / umat), str(main)]
    subprocess.run([*FORTRAN, *TRAPS, *files, "-o", str(output), "-lm", "-J", str(output.parent)], check=True)
    return output


def test_a_solver_in_c_without_torch(tmp_path):
    folder = tmp_path / "kernel"
    torchferry.export(f"{SOLVERS / 'decay.py'}:make_model", output=folder, formats="c")
    result = tmp_path / "decay"
    files = [str(SOLVERS / "decay_kernel.c"), str(folder / "make_model.c")]
    subprocess.run(["gcc", "-O2", "-ffp-contract=off", f"-I{folder}", *files, "-o", str(result), "-lm"], check=True)
    message = subprocess.run([str(result)], capture_output=True, text=True, check=True).stdout
    needed = subprocess.run(["ldd", str(result)], capture_output=True, text=True, check=True).stdout
    assert not any(word in needed for word in ("torch", "c10", "stdc++"))
    scope: dict = {}
    exec((SOLVERS / "decay.py").read_text(), scope)
    wanted = numpy.array(scope["integrate"]()).T
    got = numpy.array([[float(v) for v in line.split()] for line in message.splitlines()])
    assert numpy.allclose(got, wanted, rtol=1e-14, atol=0)


def test_an_element_under_a_history_of_strain(umat, solid, tmp_path):
    result = program(umat, SOLVERS / "umat_element.f90", tmp_path / "element")
    message = subprocess.run([str(result)], capture_output=True, text=True, check=True).stdout
    rows = numpy.array([[float(v) for v in line.split()] for line in message.splitlines()])
    model = torchferry.load(solid, engine="torchscript")
    strain, stress, ep = torch.zeros(1, 6, dtype=F), torch.zeros(1, 6, dtype=F), torch.zeros(1, dtype=F)
    plastic = 0
    for step, row in enumerate(rows):
        old, strain = strain, strain.clone()
        strain[0, 0] += 2.5e-4 if step < 20 else -2.5e-4
        # Abaqus' fourth is the engineering shear strain xy, the sixth in Mandel notation.
        strain[0, 5] += 1e-4 / math.sqrt(2)
        before = float(ep)
        stress, ep = model(strain, old, stress, ep)
        plastic += float(ep) > before + 1e-9
        s = stress[0].numpy()
        wanted = [float(strain[0, 0]), *s[:3], s[5] / math.sqrt(2), s[4] / math.sqrt(2), s[3] / math.sqrt(2), float(ep)]
        assert numpy.allclose(row, wanted, rtol=1e-9, atol=1e-9), step
    assert 5 < plastic < 35


def test_the_tangent_is_the_derivative(umat, tmp_path):
    result = program(umat, SOLVERS / "umat_element.f90", tmp_path / "element")
    assert subprocess.run([str(result), "check"], check=False, capture_output=True).returncode == 0


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("of_stress(i)*of_strain(j)*out", "out"),
        ("out_3(6*(order(i) - 1) + order(j))", "out_3(6*(order(i) - 1) + j)"),
    ],
)
def test_a_tangent_in_other_components_is_seen(umat, tmp_path, right, wrong):
    text = (umat / "make_model_umat.f90").read_text()
    assert right in text
    (umat / "wrong.f90").write_text(text.replace(right, wrong))
    result = program(umat, SOLVERS / "umat_element.f90", tmp_path / "element", "wrong.f90")
    assert subprocess.run([str(result), "check"], check=False, capture_output=True).returncode == 1


FAILS = """
program fails
  implicit none
  double precision :: s(6), q(1), c(6, 6), none(6), zero, nothing(9), three(3), turned(3, 3), stran(6)
  double precision :: de(6), time(2), p
  character(len=80) :: material
  integer :: n
  none = 0; zero = 0; nothing = 0; three = 0; turned = 0; material = 'J2'; stran = 0; time = 0
  n = {components}
  s = 7; q = 0.25d0; c = -1; p = 1; de = 0; de(1) = {strain}
  call umat(s, q, c, zero, zero, zero, zero, none, none, zero, stran, de, time, 1d0, zero, zero, nothing, nothing, &
    material, 3, 3, n, 1, nothing, 0, three, turned, p, zero, turned, turned, 1, 1, 1, 1, 1, 1)
  print *, p, s(1), q(1)
end program
"""


@pytest.mark.parametrize(
    ("components", "strain", "wanted"),
    [(6, "1d-9", 1.0), (6, "1d200", 0.25), (4, "1d-9", 0.0)],
)
def test_what_is_not_solved_asks_for_a_smaller_step(umat, tmp_path, components, strain, wanted):
    main = tmp_path / "fails.f90"
    main.write_text(FAILS.format(components=components, strain=strain))
    # Values that only one branch sets are no warning of ours.
    result = program(umat, main, tmp_path / "fails")
    message = subprocess.run([str(result)], capture_output=True, text=True, check=True).stdout.splitlines()[-1].split()
    assert float(message[0]) == wanted
    if wanted != 1.0:
        assert [float(v) for v in message[1:]] == [7.0, 0.25]


def test_models_that_are_no_umat(tmp_path, capfd, umat):
    robertson = tmp_path / "robertson"
    assert run(["convert", str(ROOT / "artifacts" / "robertson.pt"), "--to", "c", "-o", str(robertson)]) == 0
    assert run(["umat", str(robertson)]) == 2
    assert "the kernel has no tangent for a UMAT" in capfd.readouterr().err
    assert run(["umat", str(tmp_path)]) == 4
    perzyna = tmp_path / "perzyna"
    assert run(["convert", str(ROOT / "artifacts" / "perzyna.pt"), "--to", "c", "-o", str(perzyna)]) == 0
    assert run(["umat", str(perzyna), "--stress", "stress_residual", "--strain", "stress"]) == 2
    assert "that Abaqus does not provide" in capfd.readouterr().err
    assert not list(perzyna.glob("*.f90"))
    assert run(["umat", str(umat), "--strain", "stain"]) == 2


def test_properties_are_the_materials(umat):
    text = (umat / "make_model_umat.f90").read_text()
    assert "PROPS, where NPROPS is 4" in text
    assert "newton" not in text.split("module")[0]


WITH_PROPERTIES = """
program properties
  implicit none
  double precision :: s(6), q(1), c(6, 6), none(6), zero, nothing(9), three(3), turned(3, 3), stran(6), props(4)
  double precision :: de(6), time(2), p
  character(len=80) :: material
  none = 0; zero = 0; nothing = 0; three = 0; turned = 0; material = 'J2'; stran = 0; time = 0
  props = [166667d0, 76923d0, 2000d0, {yielding}]
  s = 0; q = 0; c = 0; p = 1; de = 0; de(1) = 4d-3
  call umat(s, q, c, zero, zero, zero, zero, none, none, zero, stran, de, time, 1d0, zero, zero, nothing, nothing, &
    material, 3, 3, 6, 1, props, {count}, three, turned, p, zero, turned, turned, 1, 1, 1, 1, 1, 1)
  print *, p, s(1), q(1)
end program
"""


@pytest.mark.thorough
def test_a_parameter_by_element_is_a_property(tmp_path):
    need(shutil.which("gfortran") is not None, "gfortran is not installed")
    source, folder = f"{ROOT / 'examples' / 'return_map.py'}:make_model", tmp_path / "make_model"
    torchferry.export(source, output=folder, formats="c", derivatives="stress:strain", per_element="*.yield_stress")
    assert run(["umat", str(folder)]) == 0
    subprocess.run(["gcc", "-O2", "-c", "make_model.c"], cwd=folder, check=True)
    model = torchferry.load(folder)

    def call_umat(yielding: float, count: int = 4) -> list[float]:
        main = tmp_path / "properties.f90"
        main.write_text(WITH_PROPERTIES.format(yielding=f"{yielding}d0", count=count))
        result = program(folder, main, tmp_path / "properties")
        message = subprocess.run([str(result)], capture_output=True, text=True, check=True).stdout
        return [float(word) for word in message.splitlines()[-1].split()]

    for yielding in (250.0, 400.0):
        zeros = numpy.zeros((1, 6))
        strain = zeros.copy()
        strain[0, 0] = 4e-3
        stress, ep = model(strain, zeros, zeros, numpy.zeros(1), numpy.array([yielding]))
        assert ep[0] > 0
        assert numpy.allclose(call_umat(yielding), [1.0, stress[0, 0], ep[0]], rtol=1e-9)
    # It has no value of its own.
    assert call_umat(250.0, count=3)[0] == 0.0

"""Solvers in C that have a kernel and no torch."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy
import pytest
from project import ROOT, need

import torchferry

SOLVERS = ROOT / "examples" / "solvers"


def test_a_solver_in_c_without_torch(tmp_path):
    folder = tmp_path / "kernel"
    torchferry.export(f"{SOLVERS / 'decay.py'}:make_model", output=folder, formats="c")
    result = tmp_path / "decay"
    files = [str(SOLVERS / "decay_kernel.c"), str(folder / "make_model.c")]
    subprocess.run(["gcc", "-O2", "-ffp-contract=off", f"-I{folder}", *files, "-o", str(result), "-lm"], check=True)
    message = subprocess.run([str(result)], capture_output=True, text=True, check=True).stdout
    needed = subprocess.run(["ldd", str(result)], capture_output=True, text=True, check=True).stdout
    # Names alone: an address may have any letters.
    names = [Path(line.split()[0]).name for line in needed.splitlines()]
    assert "libc.so.6" in names
    assert not any(word in name for name in names for word in ("torch", "c10", "stdc++"))
    scope: dict = {}
    exec((SOLVERS / "decay.py").read_text(), scope)
    wanted = numpy.array(scope["integrate"]()).T
    got = numpy.array([[float(v) for v in line.split()] for line in message.splitlines()])
    assert numpy.allclose(got, wanted, rtol=1e-14, atol=0)


@pytest.mark.thorough
def test_petsc_integrates_with_the_kernels_jacobian(tmp_path):
    need(shutil.which("mpicc") is not None and shutil.which("pkg-config") is not None, "petsc-dev is not installed")
    flags = subprocess.run(["pkg-config", "--cflags", "--libs", "petsc"], capture_output=True, text=True, check=False)
    need(flags.returncode == 0, "petsc-dev is not installed")
    folder = tmp_path / "kernel"
    torchferry.export(f"{SOLVERS / 'robertson.py'}:make_model", output=folder, formats="c", derivatives="rate:y")
    sources = [str(SOLVERS / "robertson_petsc.c"), str(folder / "make_model.c")]
    command = [
        "mpicc",
        "-O1",
        "-ffp-contract=off",
        f"-I{folder}",
        *sources,
        *flags.stdout.split(),
        "-lm",
        "-o",
        "solver",
    ]
    subprocess.run(command, cwd=tmp_path, check=True)
    printed = subprocess.run(["./solver"], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    time, *y, steps, failures = map(float, printed.split())
    # Hairer and Wanner's values at 40 (Solving Ordinary Differential Equations II).
    assert time == 40
    assert numpy.allclose(y, [0.7158270688, 9.185534764e-06, 0.2841637457], rtol=0, atol=3e-6)
    assert failures == 0
    assert steps < 3000
    # The control: with a Jacobian of another sign it comes nowhere near, or says so.
    wrong = (SOLVERS / "robertson_petsc.c").read_text()
    assert "block[i] = -block[i];" in wrong
    (tmp_path / "wrong.c").write_text(wrong.replace("block[i] = -block[i];", "block[i] = block[i];"))
    subprocess.run([*command[:4], "wrong.c", *command[5:]], cwd=tmp_path, check=True)
    done = subprocess.run(["./solver"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode or not numpy.allclose([float(v) for v in done.stdout.split()[1:4]], y, rtol=1e-3)

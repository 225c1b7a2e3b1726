"""A solver in C that has a kernel and no torch."""

from __future__ import annotations

import subprocess

import numpy
from project import ROOT

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
    assert not any(word in needed for word in ("torch", "c10", "stdc++"))
    scope: dict = {}
    exec((SOLVERS / "decay.py").read_text(), scope)
    wanted = numpy.array(scope["integrate"]()).T
    got = numpy.array([[float(v) for v in line.split()] for line in message.splitlines()])
    assert numpy.allclose(got, wanted, rtol=1e-14, atol=0)

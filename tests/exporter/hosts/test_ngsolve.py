"""NGSolve from pip: a kernel at the integration points of a mesh, beside NGSolve's own elasticity."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from host_environments import NEEDS_OF_KERNELS, need_environment, run_in
from project import ROOT

import torchferry

pytestmark = pytest.mark.thorough

EXAMPLES = ROOT / "examples" / "hosts"
SIZES = [1e-3, 2e-3, 4e-3, 3e-3]
SCRIPT = """
import json, sys
sys.path.insert(0, sys.argv[1])
import torchferry
from ngsolve_block import stretch
kernel = torchferry.load(sys.argv[2])

class Wrong:
    contract = kernel.contract

    def call(self, method, inputs):
        result = kernel.call(method, inputs)
        return {**result, "d stress / d strain": 1.02 * result["d stress / d strain"]}

for which in (kernel, Wrong()):
    print("RESULT " + json.dumps(stretch(which, json.loads(sys.argv[3]))))
"""
# NGSolve's own linear elasticity of the same cube: 2 G (e + tr(e) I), with G of 1e5.
ELASTIC = """
import json, sys
sys.path.insert(0, sys.argv[1])
import ngsolve as ng
from netgen.csg import unit_cube
from ngsolve_block import ORDER
mesh = ng.Mesh(unit_cube.GenerateMesh(maxh=0.5))
space = ng.VectorH1(mesh, order=ORDER, dirichlet="back|front")
u, v = space.TnT()
form = ng.BilinearForm(space)
form += 2e5 * ng.InnerProduct(ng.Sym(ng.Grad(u)), ng.Sym(ng.Grad(v))) * ng.dx
form += 2e5 * ng.div(u) * ng.div(v) * ng.dx
form.Assemble()
shift = ng.GridFunction(space)
shift.Set(ng.CF((1e-3 * ng.x, 0, 0)), definedon=mesh.Boundaries("back|front"))
shift.vec.data -= form.mat.Inverse(space.FreeDofs()) * (form.mat * shift.vec).Evaluate()
print("RESULT " + json.dumps(shift.vec.FV().NumPy().tolist()))
"""


@pytest.fixture(scope="module")
def python() -> Path:
    return need_environment("ngsolve", "ngsolve==6.2.2608", *NEEDS_OF_KERNELS)


@pytest.fixture(scope="module")
def results(python, solid, tmp_path_factory) -> list[list[dict[str, Any]]]:
    arguments = ["-c", SCRIPT, str(EXAMPLES), str(solid.with_suffix("")), str(SIZES)]
    return run_in(python, *arguments, folder=tmp_path_factory.mktemp("ngsolve"))


def test_each_point_follows_the_law(results, solid):
    model = torchferry.load(solid.with_suffix(""))
    count = len(results[0][0]["strain"])
    before = {s.name: np.zeros((count, *s.shape)) for s in model.contract.inputs if s.name.endswith("~1")}
    for step in results[0]:
        inputs = {**before, "strain": np.array(step["strain"])}
        values = {**inputs, **model.call("forward", inputs)}
        assert np.allclose(step["stress"], values["stress"], rtol=1e-12, atol=1e-10)
        before = {name: values[name.removesuffix("~1")] for name in before}
    assert np.abs(results[0][2]["stress"]).max() > 400


def is_quadratic(residuals: list[float]) -> bool:
    tail = [r for r in residuals if r < 0.1]
    return len(tail) >= 2 and all(after <= 5 * before**2 + 1e-11 for before, after in pairwise(tail))


def test_the_iteration_is_quadratic(results):
    right, wrong = ([is_quadratic(step["residuals"]) for step in steps[1:3]] for steps in results)
    assert all(right), [step["residuals"] for step in results[0]]
    # The control: a tangent that is not the stress's.
    assert not any(wrong)


def test_an_elastic_block_is_that_of_ngsolve(python, point_kernels, tmp_path):
    arguments = [str(EXAMPLES), str(point_kernels["limited"]), "[1e-3]"]
    ours, _ = run_in(python, "-c", SCRIPT, *arguments, folder=tmp_path)
    (own,) = run_in(python, "-c", ELASTIC, *arguments, folder=tmp_path)
    assert np.allclose(ours[0]["shift"], own, rtol=0, atol=1e-10 * np.abs(own).max())

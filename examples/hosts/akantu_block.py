"""A block in Akantu, whose material is a kernel that is called for all points at once, in Python.

    pip install akantu numpy pydantic filelock jinja2 typer
    PYTHONPATH=CHECKOUT python akantu_block.py KERNEL

The kernel is a folder of ``torchferry export --format c --derivative stress:strain``, whose other inputs are values of
the step before; torch is not needed. The program prints the iterations of Newton's method and the largest stress of
each step. ``python akantu_block.py`` alone takes Akantu's own plasticity.
"""

from __future__ import annotations

import gc
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import akantu
import numpy as np

import torchferry

CORNERS = ((0, 0, 0), (1, 0, 0), (1, 1, 0), (0, 1, 0), (0, 0, 1), (1, 0, 1), (1, 1, 1), (0, 1, 1))
BULK, SHEAR, YIELD, HARDENING = 166_667.0, 76_923.0, 250.0, 2_000.0
# Rows and columns of a component: xx, yy, zz, yz, xz, xy, which is Akantu's order too; shears of the model have a root.
ROWS, COLUMNS = [0, 1, 2, 1, 0, 0], [0, 1, 2, 2, 2, 1]
SCALES = np.array([1.0, 1.0, 1.0, *[2.0**0.5] * 3])
STEPS = (5e-4, 1e-3, 1.5e-3, 1.4e-3, 1.3e-3)


class KernelMaterial(akantu.Material):
    """A material whose law is a kernel; ``accept`` makes the state of a step the old one of the next."""

    kernel: Any = None
    made: Any = None

    def __init__(self, model: Any, name: str) -> None:
        super().__init__(model, name)
        # Numbers by element type and name: those of the step before, and those of this step.
        self._old: dict[Any, dict[str, np.ndarray]] = {}
        self._new: dict[Any, dict[str, np.ndarray]] = {}
        KernelMaterial.made = self

    def _update(self, element: Any, ghost: Any) -> tuple[np.ndarray, np.ndarray]:
        gradient = np.asarray(self.getGradU(element, ghost)).reshape(-1, 3, 3)
        strain = 0.5 * (gradient + gradient.transpose(0, 2, 1))[:, ROWS, COLUMNS] * SCALES
        old = {s.name: s.shape for s in self.kernel.contract.inputs if s.name.endswith("~1")}
        before = self._old.get(element, {name: np.zeros((len(strain), *shape)) for name, shape in old.items()})
        inputs = {**before, "strain": strain}
        result = self.kernel.call("jacobian", inputs)
        self._new[element] = {name: {**inputs, **result}[name.removesuffix("~1")] for name in old}
        return result["stress"], result["d stress / d strain"]

    def computeStress(self, element: Any, ghost: Any) -> None:
        stress, _ = self._update(element, ghost)
        out = np.asarray(self.getStress(element, ghost))
        full = np.empty((len(stress), 3, 3))
        full[:, ROWS, COLUMNS] = full[:, COLUMNS, ROWS] = stress / SCALES
        out[:] = full.reshape(out.shape)

    def computeTangentModuli(self, element: Any, tangent: Any, ghost: Any) -> None:
        _, block = self._update(element, ghost)
        out = np.asarray(tangent)
        out[:] = (block / SCALES[:, None] / SCALES).reshape(out.shape)

    def getPushWaveSpeed(self, element: Any) -> float:
        return 1.0

    def getShearWaveSpeed(self, element: Any) -> float:
        return 1.0

    def accept(self) -> None:
        self._old = dict(self._new)


def write_mesh(path: Path, cells: int) -> None:
    """Write a cube of hexahedra as Gmsh does."""
    places = [(i, j, k) for k in range(cells + 1) for j in range(cells + 1) for i in range(cells + 1)]
    numbers = {place: i for i, place in enumerate(places, 1)}
    elements = [[numbers[i + a, j + b, k + c] for a, b, c in CORNERS] for i, j, k in places if max(i, j, k) < cells]
    lines = ["$MeshFormat", "2.2 0 8", "$EndMeshFormat", "$Nodes", str(len(places))]
    lines += [f"{numbers[p]} {p[0] / cells} {p[1] / cells} {p[2] / cells}" for p in places]
    lines += ["$EndNodes", "$Elements", str(len(elements))]
    lines += [f"{i} 5 2 1 1 {' '.join(map(str, nodes))}" for i, nodes in enumerate(elements, 1)]
    path.write_text("\n".join([*lines, "$EndElements", ""]))


def describe_own() -> str:
    """Return Akantu's own law of the return map's numbers."""
    young = 9 * BULK * SHEAR / (3 * BULK + SHEAR)
    poisson = (3 * BULK - 2 * SHEAR) / (2 * (3 * BULK + SHEAR))
    numbers = f"E = {young!r}\nnu = {poisson!r}\nsigma_y = {YIELD}\nh = {HARDENING}\n"
    return f"material plastic_linear_isotropic_hardening [\nname = solid\nrho = 1.\n{numbers}]\n"


def solve(kernel: Any, cells: int, steps: tuple[float, ...] = STEPS) -> list[dict[str, Any]]:
    """Stretch and shear a block by its top; with no kernel, of Akantu's own law."""
    KernelMaterial.kernel, KernelMaterial.made = kernel, None
    with tempfile.TemporaryDirectory() as folder:
        write_mesh(Path(folder) / "block.msh", cells)
        text = "material kernel [\nname = solid\nrho = 1.\n]\n" if kernel is not None else describe_own()
        (Path(folder) / "material.dat").write_text(text)
        akantu.parseInput(str(Path(folder) / "material.dat"))
        mesh = akantu.Mesh(3)
        mesh.read(str(Path(folder) / "block.msh"))
    model = akantu.SolidMechanicsModel(mesh)
    model.initFull(_analysis_method=akantu._static)
    solver = model.getNonLinearSolver()
    solver.set("max_iterations", 100)
    solver.set("threshold", 1e-7)
    solver.set("convergence_type", akantu.SolveConvergenceCriteria.residual)
    nodes, blocked, displacement = mesh.getNodes(), model.getBlockedDOFs(), model.getDisplacement()
    moved = (nodes[:, 2] == 0) | (nodes[:, 2] == 1)
    blocked[moved, :] = True
    results = []
    for size in steps:
        gradient = size * np.array([[0.3, 0.0, 1.0], [0.0, -0.2, 0.4], [0.1, 0.0, 1.0]])
        displacement[moved, :] = (nodes @ gradient.T)[moved]
        model.solveStep()
        stress = np.array(model.getMaterial(0).getStress(akantu._hexahedron_8))
        result = {"iterations": solver.getInt("nb_iterations"), "stresses": stress.tolist()}
        results.append({**result, "displacements": np.array(displacement).tolist()})
        if KernelMaterial.made is not None:
            KernelMaterial.made.accept()
    return results


def main() -> None:
    """Run with the kernel of the command line, or with Akantu's own law."""
    kernel = torchferry.load(sys.argv[1]) if len(sys.argv) > 1 else None
    for step in solve(kernel, 2):
        print(f"iterations {step['iterations']}, largest stress {np.abs(step['stresses']).max():.4f}")


akantu.MaterialFactory.getInstance().registerAllocator(
    "kernel", lambda _dim, _, model, name: KernelMaterial(model, name)
)

if __name__ == "__main__":
    main()
    sys.stdout.flush()
    gc.collect()
    # Akantu takes materials in Python apart too late for the interpreter.
    os._exit(0)

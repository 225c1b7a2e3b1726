"""A material of NGSolve from a kernel: stresses and tangents of all integration points by one call.

    pip install ngsolve numpy pydantic filelock jinja2 typer
    PYTHONPATH=CHECKOUT python ngsolve_block.py KERNEL

The kernel has the block of its stress by its strain; its other inputs are values of the step before. A cube that is
clamped at two faces is stretched and let go; the program prints the residuals of each step's Newton iteration.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import ngsolve as ng
import numpy as np
from netgen.csg import unit_cube
from ngsolve.comp import IntegrationRuleSpace

import torchferry

ORDER = 2
ROOT = 2**0.5


def take_strain(gradient: Any) -> Any:
    """Return the strain of a displacement's gradient: xx, yy, zz, and the root of two times yz, xz, xy."""
    e = 0.5 * (gradient + gradient.trans)
    return ng.CF((e[0, 0], e[1, 1], e[2, 2], ROOT * e[1, 2], ROOT * e[0, 2], ROOT * e[0, 1]))


class KernelMaterial:
    """A kernel at the integration points of a mesh.

    Attributes:
        dx: The integral over these points.
        stress: The stress as a coefficient function.
        tangent: Its derivative by the strain, likewise.
    """

    def __init__(self, kernel: Any, mesh: ng.Mesh) -> None:
        self._kernel = kernel
        points = IntegrationRuleSpace(mesh, order=2 * (ORDER - 1))
        self.dx = ng.dx(intrules=points.GetIntegrationRules())
        self._strain, self._stress, self._tangent = (ng.GridFunction(points**n) for n in (6, 6, 36))
        self.stress = ng.CF(tuple(self._stress.components))
        self.tangent = ng.CF(tuple(self._tangent.components), dims=(6, 6))
        inputs = kernel.contract.inputs
        self._old = {s.name: np.zeros((points.ndof, *s.shape)) for s in inputs if s.name.endswith("~1")}

    def update(self, strain: Any, *, is_accepted: bool = False) -> None:
        """Compute stress and tangent for a strain; where the step is accepted, the next one starts from them."""
        self._strain.Interpolate(strain)
        inputs = {**self._old, "strain": self.list_numbers()["strain"]}
        result = self._kernel.call("jacobian", inputs)
        if not all(np.isfinite(numbers).all() for numbers in result.values()):
            raise ArithmeticError("the material has no result: take a smaller step")
        for function, name in ((self._stress, "stress"), (self._tangent, "d stress / d strain")):
            function.vec.FV().NumPy()[:] = result[name].reshape(len(result[name]), -1).T.ravel()
        if is_accepted:
            self._old = {name: {**inputs, **result}[name.removesuffix("~1")] for name in self._old}

    def list_numbers(self) -> dict[str, np.ndarray]:
        """Return strain and stress of all points."""
        pairs = (("strain", self._strain), ("stress", self._stress))
        return {name: function.vec.FV().NumPy().reshape(6, -1).T.copy() for name, function in pairs}


def stretch(kernel: Any, sizes: Sequence[float], cells: float = 0.5) -> list[dict[str, Any]]:
    """Stretch a clamped cube to each size; return the residuals of each step, displacements, strains and stresses."""
    mesh = ng.Mesh(unit_cube.GenerateMesh(maxh=cells))
    space = ng.VectorH1(mesh, order=ORDER, dirichlet="back|front")
    u, v = space.TnT()
    shift, material = ng.GridFunction(space), KernelMaterial(kernel, mesh)
    strain, test = take_strain(ng.Grad(shift)), take_strain(ng.Grad(v))
    stiffness = ng.BilinearForm(ng.InnerProduct(material.tangent * take_strain(ng.Grad(u)), test) * material.dx)
    forces = ng.LinearForm(ng.InnerProduct(material.stress, test) * material.dx)
    free, results = space.FreeDofs(), []
    is_free = np.array([bool(is_set) for is_set in free])
    for before, size in pairwise([0.0, *sizes]):
        # What the step adds at the clamped faces; Newton's method moves the rest.
        change = ng.GridFunction(space)
        change.Set(ng.CF(((size - before) * ng.x, 0, 0)), definedon=mesh.Boundaries("back|front"))
        residuals: list[float] = []
        while not residuals or (residuals[-1] > 1e-11 and len(residuals) < 20):
            material.update(strain)
            stiffness.Assemble()
            forces.Assemble()
            step = change.vec if not residuals else 0 * change.vec
            forces.vec.data += stiffness.mat * step
            shift.vec.data += step - stiffness.mat.Inverse(free) * forces.vec
            numbers = np.abs(forces.vec.FV().NumPy())
            residuals.append(float(numbers[is_free].max() / max(numbers[~is_free].max(), 1e-300)))
        if residuals[-1] > 1e-11:
            raise ArithmeticError(f"no equilibrium at {size} after {len(residuals)} iterations: take a smaller step")
        material.update(strain, is_accepted=True)
        numbers = {name: values.tolist() for name, values in material.list_numbers().items()}
        results.append({"residuals": residuals, "shift": shift.vec.FV().NumPy().tolist(), **numbers})
    return results


def main() -> None:
    """Stretch a cube and let it go, with the kernel of the command line."""
    sizes = [1e-3, 2e-3, 4e-3, 3e-3]
    for size, result in zip(sizes, stretch(torchferry.load(sys.argv[1]), sizes), strict=True):
        residuals = " ".join(f"{r:.1e}" for r in result["residuals"])
        print(f"stretch {size}: largest stress {np.abs(result['stress']).max():.4f}, residuals {residuals}")


if __name__ == "__main__":
    main()

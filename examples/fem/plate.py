"""A plate with a hole in scikit-fem, its material from one archive: J2 plasticity with isotropic hardening.

    torchferry export examples/return_map.py:make_model --derivative stress:strain -o return_map.pt
    python examples/fem/plate.py return_map.pt -o plate.svg

One call of the archive gives stress and consistent tangent at all quadrature points. A quarter of the plate is
stretched in plane strain, and unloaded. The global Newton iteration is that of Simo and Hughes, Computational
Inelasticity (1998), box 4.1; with the consistent tangent it converges quadratically (Simo and Taylor, 1985).

Lengths are in units of half the plate's width, stresses in MPa; strain and stress are in Mandel notation.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from skfem import Basis, BilinearForm, ElementQuad2, ElementVector, LinearForm, MeshQuad, asm, condense, solve
from skfem.helpers import sym_grad

import torchferry

# Displacement of the upper edge: loading beyond yield, and back into compression.
LOADS = (5e-4, 7e-4, 9e-4, 1.1e-3, 1.3e-3, 1e-3, 0.0, -5e-4)
TOLERANCE, MOST = 1e-11, 25
STATES = ("strain", "stress", "ep")
# Tangents at the quadrature points, (points, 6, 6), from those of this iteration and what the step began with.
Choice = Callable[[np.ndarray, np.ndarray], np.ndarray]


class Material(Protocol):
    """What ``torchferry.load`` gives."""

    def call(self, method: str, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]: ...


def consistent(now: np.ndarray, before: np.ndarray) -> np.ndarray:
    return now


@dataclass
class Step:
    """A load step: norms of the residual, one for each iteration."""

    load: float
    norms: list[float] = field(default_factory=list)
    converged: bool = False


def quarter_plate(across: int = 6, along: int = 8, radius: float = 0.35) -> MeshQuad:
    """A grid of ``across`` by ``along`` quadrilaterals from the hole to the square's upper and right edge."""
    angle, way = np.meshgrid(np.linspace(0, np.pi / 2, along + 1), np.linspace(0, 1, across + 1) ** 1.3)
    direction = np.stack([np.cos(angle), np.sin(angle)])
    points = radius * direction * (1 - way) + direction / abs(direction).max(0) * way
    number = np.arange(angle.size).reshape(angle.shape)
    corners = number[:-1, :-1], number[1:, :-1], number[1:, 1:], number[:-1, 1:]
    return MeshQuad(points.reshape(2, -1), np.stack([c.ravel() for c in corners]))


def mandel(displacement) -> np.ndarray:
    """Strains ``(6, elements, points)`` in plane strain."""
    e = sym_grad(displacement)
    zero = np.zeros_like(e[0, 0])
    return np.stack([e[0, 0], e[1, 1], zero, zero, zero, np.sqrt(2) * e[0, 1]])


@LinearForm
def internal_force(v, w):
    return np.einsum("i...,i...", w["stress"], mandel(v))


@BilinearForm
def stiffness(u, v, w):
    return np.einsum("i...,ij...,j...", mandel(v), w["tangent"], mandel(u))


class Plate:
    """The state at every quadrature point, and the displacement of every node."""

    def __init__(self, material: Material, mesh: MeshQuad | None = None) -> None:
        self.material = material
        mesh = mesh or quarter_plate()
        self.basis = Basis(mesh, ElementVector(ElementQuad2()))
        self.shape = (mesh.nelements, self.basis.W.shape[-1])
        points = self.shape[0] * self.shape[1]
        self.state = {
            name: torch.zeros((points, 6) if name != "ep" else points, dtype=torch.float64) for name in STATES
        }
        self.u = self.basis.zeros()
        self.upper = self.basis.get_dofs(lambda x: np.isclose(x[1], 1)).all("u^2")
        sides = [
            self.basis.get_dofs(lambda x, axis=axis: np.isclose(x[axis], 0)).all(f"u^{axis + 1}") for axis in (0, 1)
        ]
        self.held = np.unique(np.concatenate([self.upper, *sides]))
        self.free = self.basis.complement_dofs(self.held)
        self.start = self.response(self.u)[1]

    def response(self, u: np.ndarray) -> tuple[dict[str, torch.Tensor], np.ndarray]:
        """The new state, and tangents ``(points, 6, 6)``. Raises ``RuntimeError`` where a point does not converge."""
        strain = torch.from_numpy(mandel(self.basis.interpolate(u)).reshape(6, -1).T.copy())
        arguments = {"strain": strain} | {f"{name}~1": value for name, value in self.state.items()}
        result = self.material.call("jacobian", arguments)
        lost = int(result["ep"].isnan().sum())
        if lost:
            raise RuntimeError(f"{lost} of {len(strain)} quadrature points do not converge: take a smaller load step")
        now = {"strain": strain, "stress": result["stress"], "ep": result["ep"]}
        return now, result["d stress / d strain"].numpy()

    def at_points(self, values: np.ndarray) -> np.ndarray:
        """``(points, ...)`` as scikit-fem takes it, ``(..., elements, points of each)``."""
        return np.moveaxis(values.reshape(*self.shape, *values.shape[1:]), (0, 1), (-2, -1))

    def load(self, value: float, choice: Choice = consistent) -> Step:
        """Moves the upper edge to ``value``; the state goes on where the step converges within ``MOST`` iterations."""
        step, u = Step(value), self.u.copy()
        change = self.basis.zeros()
        change[self.upper] = value - u[self.upper]
        now, tangent = self.response(u)
        while len(step.norms) < MOST:
            force = asm(internal_force, self.basis, stress=self.at_points(now["stress"].numpy()))
            matrix = asm(stiffness, self.basis, tangent=self.at_points(choice(tangent, self.start)))
            u += solve(*condense(matrix, -force, x=change, D=self.held))
            change[:] = 0
            now, tangent = self.response(u)
            force = asm(internal_force, self.basis, stress=self.at_points(now["stress"].numpy()))
            step.norms.append(float(np.linalg.norm(force[self.free]) / np.linalg.norm(force[self.held])))
            if step.norms[-1] < TOLERANCE:
                step.converged = True
                self.u, self.state, self.start = u, now, tangent
                break
        return step

    def run(self, loads: Sequence[float] = LOADS, choice: Choice = consistent) -> list[Step]:
        return [self.load(value, choice) for value in loads]

    def picture(self, path: Path) -> None:
        """The equivalent plastic strain of each element on the deformed plate, displacements times 50."""
        from matplotlib.collections import PolyCollection
        from matplotlib.figure import Figure

        mesh = self.basis.mesh
        moved = mesh.p + 50 * self.u[self.basis.nodal_dofs]
        figure = Figure(figsize=(5, 4.5), layout="constrained")
        axes = figure.subplots()
        strains = self.state["ep"].numpy().reshape(self.shape).mean(-1)
        patches = PolyCollection(moved.T[mesh.t.T], array=strains, edgecolor="w", lw=0.2)
        axes.add_collection(patches)
        axes.set(aspect="equal", title="equivalent plastic strain")
        axes.autoscale()
        figure.colorbar(patches, shrink=0.8)
        figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description="A plate with a hole, its material from an archive.")
    parser.add_argument("archive")
    parser.add_argument("-o", "--output", type=Path, help="a picture of the plastic strain")
    parser.add_argument("--engine", default="torchscript", help="or kernel, for an archive exported with --format pt,c")
    arguments = parser.parse_args()
    plate = Plate(torchferry.load(arguments.archive, engine=arguments.engine))
    print(f"{plate.shape[0]} elements, {plate.state['ep'].numel()} quadrature points, one call each iteration")
    for step in plate.run():
        print(f"upper edge at {step.load:.1e}: " + " ".join(f"{norm:.1e}" for norm in step.norms))
        if not step.converged:
            raise SystemExit("the global Newton iteration does not converge")
    if arguments.output:
        plate.picture(arguments.output)


if __name__ == "__main__":
    main()

"""Molecular dynamics in OpenMM with the energy and the forces of a kernel.

    pip install openmm numpy pydantic filelock jinja2 typer
    PYTHONPATH=CHECKOUT python openmm_chain.py KERNEL

The kernel is that of ``chain.py``; torch is not needed. It prints the energy at the start and its largest drift over
1,000 steps of 0.5 fs by Verlet's method.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import openmm
from openmm import unit

import torchferry

ATOMS, MASS, STEP = 8, 12.0, 0.0005


def make_force(kernel: Any) -> openmm.PythonForce:
    """Return the force of a kernel that has an energy and its gradient."""

    def compute(state: Any) -> tuple[float, np.ndarray]:
        positions = state.getPositions(asNumpy=True).value_in_unit(unit.nanometer)
        result = kernel.call("jacobian", {"positions": np.asarray(positions, float)[None]})
        return float(result["energy"][0]), -result["d energy / d positions"][0]

    return openmm.PythonForce(compute)


def make_context(force: openmm.Force, step: float) -> openmm.Context:
    """Return a chain that begins to move, on the reference platform, whose numbers are doubles."""
    system = openmm.System()
    for _ in range(ATOMS):
        system.addParticle(MASS)
    system.addForce(force)
    platform = openmm.Platform.getPlatformByName("Reference")
    context = openmm.Context(system, openmm.VerletIntegrator(step), platform)
    generator = np.random.default_rng(0)
    start = np.zeros((ATOMS, 3))
    start[:, 0] = 0.15 * np.arange(ATOMS)
    context.setPositions(start + 0.002 * generator.standard_normal((ATOMS, 3)))
    context.setVelocities(0.3 * generator.standard_normal((ATOMS, 3)))
    return context


def find_energies(context: openmm.Context) -> tuple[float, float]:
    """Return potential and kinetic energy in kJ/mol."""
    state = context.getState(energy=True)
    energies = (state.getPotentialEnergy(), state.getKineticEnergy())
    return tuple(e.value_in_unit(unit.kilojoule_per_mole) for e in energies)


def run(kernel: Any, steps: int = 1000, step: float = STEP) -> dict[str, Any]:
    """Run the dynamics; return energies, their drift, and the last forces."""
    context = make_context(make_force(kernel), step)
    total = [sum(find_energies(context))]
    for _ in range(steps // 10):
        context.getIntegrator().step(10)
        total.append(sum(find_energies(context)))
    state = context.getState(positions=True, forces=True)
    return {
        "total": total,
        "kinetic": find_energies(context)[1],
        "positions": state.getPositions(asNumpy=True).value_in_unit(unit.nanometer).tolist(),
        "forces": state.getForces(asNumpy=True)._value.tolist(),
    }


def main() -> None:
    """Run 1,000 steps with the kernel of the command line."""
    total = run(torchferry.load(sys.argv[1]))["total"]
    drift = max(abs(value - total[0]) for value in total)
    print(f"energy {total[0]:.4f} kJ/mol, largest drift {drift:.2e}")


if __name__ == "__main__":
    main()

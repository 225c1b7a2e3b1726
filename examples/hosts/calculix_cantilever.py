"""A cantilever in CalculiX that yields at its clamped end, with a wrapped kernel as its material.

    torchferry wrap calculix KERNEL && make -C KERNEL/calculix
    python calculix_cantilever.py ccx KERNEL/calculix

It needs a ccx that loads libraries (``tools/build_calculix.sh`` builds one). It prints the forces at the clamp, and
the iterations of each increment.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from itertools import product
from pathlib import Path

LENGTH, HEIGHT, CELLS = 8.0, 1.0, (16, 3, 2)
Results = dict[str, list[float]]


def write_mesh() -> list[str]:
    """Return nodes and elements of a bar, clamped at its left end."""
    nx, ny, nz = CELLS
    points = list(product(range(nx + 1), range(ny + 1), range(nz + 1)))
    numbers = {point: i for i, point in enumerate(points, 1)}
    size = (LENGTH / nx, HEIGHT / ny, HEIGHT / nz)
    lines = ["*NODE, NSET=ALL"]
    lines += [f"{numbers[p]}, " + ", ".join(f"{n * s:.12g}" for n, s in zip(p, size, strict=True)) for p in points]
    lines.append("*ELEMENT, TYPE=C3D8I, ELSET=BAR")
    corners = [(0, 0, 0), (1, 0, 0), (1, 1, 0), (0, 1, 0), (0, 0, 1), (1, 0, 1), (1, 1, 1), (0, 1, 1)]
    for i, (x, y, z) in enumerate(product(range(nx), range(ny), range(nz)), 1):
        lines.append(", ".join(map(str, [i, *(numbers[x + a, y + b, z + c] for a, b, c in corners)])))
    for name, end in (("LEFT", 0), ("TIP", nx)):
        lines += [f"*NSET, NSET={name}", *(f"{numbers[p]}," for p in points if p[0] == end)]
    return lines


def write_job(material: Sequence[str], deflections: Sequence[float], step: str = "0.2, 1.") -> str:
    """Return an input file: a step for each deflection of the tip, solved more exactly than CalculiX does by itself."""
    name = material[0].partition("NAME=")[2]
    lines = [*write_mesh(), *material, f"*SOLID SECTION, ELSET=BAR, MATERIAL={name}", "*BOUNDARY", "LEFT, 1, 3"]
    for deflection in deflections:
        lines += ["*STEP, INC=200", "*STATIC", step, "*CONTROLS, PARAMETERS=FIELD", "1e-8, 1e-8"]
        lines += ["*BOUNDARY", f"TIP, 2, 2, {deflection}", "*NODE PRINT, NSET=ALL, FREQUENCY=999", "U"]
        lines += ["*NODE PRINT, NSET=LEFT, FREQUENCY=999", "RF", "*EL PRINT, ELSET=BAR, GLOBAL=YES", "S", "*END STEP"]
    return "\n".join(lines) + "\n"


def run(ccx: str | Path, folder: Path, job: str, libraries: str | Path = "") -> tuple[list[Results], str]:
    """Run a job; return for each step displacements, reactions and stresses, and what the program printed."""
    (folder / "job.inp").write_text(job)
    path = ":".join(filter(None, [str(libraries), os.environ.get("LD_LIBRARY_PATH")]))
    environment = {"OMP_NUM_THREADS": "1", **os.environ, "LD_LIBRARY_PATH": path}
    command = [str(ccx), "job"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"ccx ended with {done.returncode}: {done.stdout[-800:]}{done.stderr[-800:]}")
    steps: list[Results] = []
    for block in re.split(r"\n\s*\n(?=\s*[a-z])", (folder / "job.dat").read_text()):
        title, _, rows = block.strip().partition("\n")
        kind = title.split(" ")[0]
        if kind == "displacements":
            steps.append({})
        if kind in ("displacements", "forces", "stresses"):
            # A row begins with the number of its node, or of its element and point.
            first = 2 if kind == "stresses" else 1
            steps[-1][kind] = [float(n) for row in rows.split("\n") for n in row.split()[first:]]
    return steps, done.stdout


def count_iterations(folder: Path) -> list[int]:
    """Return the iterations of each increment that CalculiX took."""
    rows = [line.split() for line in (folder / "job.sta").read_text().splitlines()[2:]]
    return [int(row[3]) for row in rows if not row[2].endswith("U")]


def main() -> None:
    """Bend the bar with the material of a folder that ``torchferry wrap calculix`` wrote."""
    ccx, libraries = sys.argv[1], Path(sys.argv[2]).resolve()
    (name,) = re.findall(r"NAME=(@\w+)", (libraries / "README.md").read_text())
    with tempfile.TemporaryDirectory() as name_of_folder:
        folder = Path(name_of_folder)
        # No constants: the values that were exported.
        material = [f"*MATERIAL, NAME={name}", "*DEPVAR", "8", "*USER MATERIAL, CONSTANTS=0", ""]
        steps, _ = run(ccx, folder, write_job(material, [0.15, 0.1]), libraries)
        for step in steps:
            force = sum(step["forces"][1::3])
            print(f"force at the clamped end {force:.4f}")
        print("iterations:", *count_iterations(folder))


if __name__ == "__main__":
    main()

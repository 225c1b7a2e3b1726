"""VUMAT: the user's material of Abaqus/Explicit, which takes blocks of points.

Interface, order of components and tensor shear strains: Abaqus User Subroutines Reference Guide, section 1.2.22
(VUMAT)."""

from __future__ import annotations

from typing import Any

from exporter.archive.kernel_container import KernelFiles
from exporter.hosts.small_strain import ALL_KINDS, PointOptions, find_material_point
from exporter.hosts.small_strain_cases import HostRow, list_rows
from exporter.hosts.wrapping import list_numbers, render

# Points of one call of the kernel: what fits into a processor's first cache.
BLOCK = 64
# The model's component of each of the host's, and its stresses there.
ORDER = (0, 1, 2, 5, 3, 4)
# The host's time is that at the end of the step.
NUMBERS = {
    "time_end": "*totalTime",
    "time_start": "*totalTime - *dt",
    "time_step": "*dt",
    "temperature_end": "tempNew[start + e]",
    "temperature_start": "tempOld[start + e]",
    "field_end": "fieldNew[{index} * n + start + e]",
    "field_start": "fieldOld[{index} * n + start + e]",
}
_NEEDS = {
    "time": ("totalTime && dt", "no time"),
    "temperature": ("tempOld && tempNew", "no temperature"),
    "field": ("fieldOld && fieldNew", "no fields"),
}


def render_vumat(kernel: KernelFiles, options: PointOptions, title: str) -> dict[str, bytes]:
    """Return the files of a VUMAT by name. Raises ``UsageError`` for a model that does not fit."""
    point = find_material_point(kernel, options, title, ALL_KINDS, with_tangent=False)
    source, self_test = f"{kernel.name}_vumat.c", f"test_{kernel.name}_vumat"
    context: dict[str, Any] = {
        **point.describe(),
        "title": title,
        "source": source,
        "self_test": self_test,
        "library": f"lib{kernel.name}_vumat.so",
        "block": BLOCK,
        "numbers": NUMBERS,
        "needs": {kind: _NEEDS[kind.partition("_")[0]][0] for kind in NUMBERS},
        "said": {kind: _NEEDS[kind.partition("_")[0]][1] for kind in NUMBERS},
    }
    rows = [_translate_row(row) for row in list_rows(point)]
    return {
        source: render("vumat.c.jinja", kernel, context),
        f"{self_test}.c": render("test_vumat.c.jinja", kernel, {**context, "rows": rows}),
        "Makefile": render("Makefile.jinja", kernel, context),
        "README.md": render("README_vumat.md.jinja", kernel, context),
    }


def _translate_row(row: HostRow) -> dict[str, Any]:
    """Return a row in the host's components: tensor shear strains, stresses without the root of two."""
    scales = [1.0 if c < 3 else 0.5**0.5 for c in ORDER]

    def to_host(numbers: tuple[float, ...]) -> list[float]:
        return [numbers[c] * s for c, s in zip(ORDER, scales, strict=True)]

    change = tuple(b - a for a, b in zip(row.strain_old, row.strain, strict=True))
    nothing = {"values": "0", "allowed": "0"}
    return {
        "strain_old": list_numbers(row.strain_old),
        "increment": list_numbers(to_host(change)),
        "stress_old": list_numbers(to_host(row.stress_old)),
        "states_old": list_numbers(row.states_old),
        "properties": list_numbers(row.properties),
        **{name: list_numbers(numbers) for name, numbers in row.values.items()},
        "stress": {
            "values": list_numbers(to_host(row.stress.values)),
            "allowed": list_numbers(to_host(row.stress.allowed)),
        }
        if row.is_solved
        else nothing,
        "states": {"values": list_numbers(row.states.values), "allowed": list_numbers(row.states.allowed)}
        if row.is_solved
        else nothing,
        "is_solved": int(row.is_solved),
    }

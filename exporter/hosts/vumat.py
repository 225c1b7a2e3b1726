"""VUMAT: the user's material of Abaqus/Explicit, which takes blocks of points.

Interface, order of components and tensor shear strains: Abaqus User Subroutines Reference Guide, section 1.2.22
(VUMAT)."""

from __future__ import annotations

from typing import Any

from exporter.archive.kernel_container import KernelFiles
from exporter.hosts.small_strain import ALL_KINDS, PointOptions, find_material_point
from exporter.hosts.small_strain_cases import HostRow, Row, list_rows
from exporter.hosts.wrapping import list_numbers, render_c_host

# Points of one call of the kernel: what fits into a processor's first cache.
BLOCK = 64
# The model's component of each of the host's.
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
    context: dict[str, Any] = {
        **point.describe(),
        "block": BLOCK,
        "numbers": NUMBERS,
        "missing": point.list_needs(_NEEDS),
    }
    return render_c_host(kernel, "vumat", title, context, [_translate_row(row) for row in list_rows(point)])


def _translate_row(row: HostRow) -> dict[str, Any]:
    """Return a row in the host's components: tensor shear strains, stresses without the root of two."""
    scales = [1.0 if c < 3 else 0.5**0.5 for c in ORDER]

    def convert(numbers: Row) -> list[float]:
        return [numbers[c] * s for c, s in zip(ORDER, scales, strict=True)]

    change = tuple(b - a for a, b in zip(row.strain_old, row.strain, strict=True))
    return {
        "strain_old": list_numbers(row.strain_old),
        "increment": list_numbers(convert(change)),
        "stress_old": list_numbers(convert(row.stress_old)),
        "states_old": list_numbers(row.states_old),
        "properties": list_numbers(row.properties),
        **{name: list_numbers(numbers) for name, numbers in row.values.items()},
        "stress": row.list_expected(row.stress, convert),
        "states": row.list_expected(row.states),
        "is_solved": int(row.is_solved),
    }

"""CalculiX: a user's material of its own interface, by which a step without a result is cut back.

Interface: CalculiX 2.20, src/umat_user.f, src/call_external_umat_user.c and src/external.c (names of libraries)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from exporter.archive.kernel_container import KernelFiles
from exporter.common.errors import UsageError
from exporter.hosts.small_strain import COMPONENTS, PointOptions, find_material_point
from exporter.hosts.small_strain_cases import HostRow, Row, list_rows
from exporter.hosts.wrapping import format_number, list_numbers, render_c_host

# The model's component of each of the host's: xx, yy, zz, xy, xz, yz.
ORDER = (0, 1, 2, 5, 4, 3)
_SCALES = tuple(1.0 if component < 3 else 0.5**0.5 for component in ORDER)
NUMBERS = {
    "time_end": "*ttime + *time",
    "time_start": "*ttime + *time - *dtime",
    "time_step": "*dtime",
    "temperature_end": "*t1l",
}
_NEEDS = {
    "time": ("time && ttime && dtime", "time"),
    "temperature": ("t1l && ithermal && *ithermal > 0", "temperature (*INITIAL CONDITIONS, TYPE=TEMPERATURE)"),
}
# As many constants as the host keeps (elconloc in its resultsmech.f); more overwrite its memory.
MOST_CONSTANTS = 21
# The host puts the names of library and function into 80 characters.
_LONGEST = 60


@dataclass(frozen=True)
class CalculixOptions:
    """What a material is written for.

    Attributes:
        point: The names of the model's variables.
        library: The name of the library; empty for the model's.
    """

    point: PointOptions = field(default_factory=PointOptions)
    library: str = ""

    def __post_init__(self) -> None:
        name = self.library.upper()
        if name and (not re.fullmatch(f"[A-Z0-9]{{1,{_LONGEST}}}", name) or name.startswith("ABAQUS")):
            expected = f"up to {_LONGEST} letters and digits, not ABAQUS first"
            what, mend = "CalculiX finds no such library", "for example --library STEEL"
            raise UsageError(what, where="--library", got=self.library, expected=expected, mend=mend)


def render_calculix(kernel: KernelFiles, options: CalculixOptions, title: str) -> dict[str, bytes]:
    """Return the files of a CalculiX material by name. Raises ``UsageError`` for a model that does not fit."""
    point = find_material_point(kernel, options.point, title, frozenset(NUMBERS))
    has_constants = point.property_count <= MOST_CONSTANTS
    if point.needs_properties and not has_constants:
        what, expected = "CalculiX takes fewer constants than the model has properties", f"at most {MOST_CONSTANTS}"
        mend = "export it without --per-element, so that the exported values can be taken"
        raise UsageError(what, where=str(kernel.path), got=str(point.property_count), expected=expected, mend=mend)
    name = options.library.upper() or name_library(kernel.name)
    context: dict[str, Any] = {
        **point.describe(),
        "block": 1,
        "has_constants": has_constants,
        "most_constants": MOST_CONSTANTS,
        "numbers": NUMBERS,
        "missing": point.list_needs(_NEEDS),
        "library": f"lib{name}.so",
        "material": f"@{name}_UPDATE",
    }
    return render_c_host(kernel, "calculix", title, context, [_translate_row(row) for row in list_rows(point)])


def name_library(name: str) -> str:
    """Return a name that CalculiX finds a library by: it makes capitals of all letters, and an underscore ends it."""
    letters = re.sub("[^A-Z0-9]", "", name.upper())[:_LONGEST] or "MODEL"
    # Names that begin so are of another interface.
    return f"X{letters}" if letters.startswith("ABAQUS") else letters


def _translate_row(row: HostRow) -> dict[str, Any]:
    """Return a row in the host's components: tensor shear strains, stresses without the root of two, and the upper half
    of a symmetric tangent, column by column."""

    def convert(numbers: Row) -> list[float]:
        return [numbers[c] * s for c, s in zip(ORDER, _SCALES, strict=True)]

    def convert_tangent(tangent: Row) -> list[float]:
        def entry(i: int, j: int) -> float:
            a, b = ORDER[i], ORDER[j]
            both = tangent[COMPONENTS * a + b] + tangent[COMPONENTS * b + a]
            return 0.5 * both * _SCALES[i] * _SCALES[j]

        return [entry(i, j) for j in range(COMPONENTS) for i in range(j + 1)]

    start, step = row.values["time"]
    temperature, warming = row.values["temperature"]
    return {
        "strain_old": list_numbers(convert(row.strain_old)),
        "strain": list_numbers(convert(row.strain)),
        "stress_old": list_numbers(convert(row.stress_old)),
        "states_old": list_numbers(row.states_old),
        "properties": list_numbers(row.properties),
        "time": list_numbers([start, step]),
        "temperature": format_number(temperature + warming),
        "stress": row.list_expected(row.stress, convert),
        "states": row.list_expected(row.states),
        "tangent": row.list_expected(row.tangent, convert_tangent),
        "is_solved": int(row.is_solved),
    }

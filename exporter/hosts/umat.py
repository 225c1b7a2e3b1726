"""UMAT: the user's material of Abaqus/Standard, which CalculiX, Kratos and others call too.

Interface and order of components: Abaqus User Subroutines Reference Guide, section 1.1.44 (UMAT)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any

from exporter.archive.kernel_container import KernelFiles
from exporter.common.errors import UsageError
from exporter.hosts.small_strain import ALL_KINDS, COMPONENTS, PointOptions, find_material_point
from exporter.hosts.small_strain_cases import HostRow, Row, list_rows
from exporter.hosts.wrapping import list_numbers, render_c_host

# The model's component of each shear.
SHEARS = {"yz": 3, "xz": 4, "xy": 5}
ABAQUS_ORDER, KRATOS_ORDER = ("xy", "xz", "yz"), ("xy", "yz", "xz")
TIMES = frozenset(kind for kind in ALL_KINDS if kind.startswith("time"))
# What a kind of number is in the arguments, which of them it needs, and what is said where they are null.
_TIME = "time[{time}]"
NUMBERS = {
    "time_end": _TIME + " + *dtime",
    "time_start": _TIME,
    "time_step": "*dtime",
    "temperature_end": "*temp + *dtemp",
    "temperature_start": "*temp",
    "field_end": "predef[{index}] + dpred[{index}]",
    "field_start": "predef[{index}]",
}
_NEEDS = {
    "time": ("time && dtime", "no TIME"),
    "temperature": ("temp && dtemp", "no TEMP"),
    "field": ("predef && dpred", "no PREDEF"),
}


@dataclass(frozen=True)
class UmatOptions:
    """What a UMAT is written for.

    Attributes:
        point: The names of the model's variables.
        shear_order: The order of the shear components behind the direct ones.
        times: The count of the numbers in ``TIME``: the host's last one is the time at the start of the increment.
        kinds: The kinds of numbers that the host provides.
    """

    point: PointOptions = field(default_factory=PointOptions)
    shear_order: Sequence[str] = ABAQUS_ORDER
    times: int = 2
    kinds: frozenset[str] = ALL_KINDS

    def __post_init__(self) -> None:
        if tuple(self.shear_order) not in permutations(SHEARS):
            got, expected = ",".join(self.shear_order), "xy, xz and yz, each once: xy,xz,yz"
            raise UsageError(
                "these are not the three shear components", where="--shear-order", got=got, expected=expected
            )
        if self.times not in (1, 2):
            raise UsageError("TIME has one or two numbers", where="--times", got=str(self.times), expected="1 or 2")


def render_umat(kernel: KernelFiles, options: UmatOptions, title: str, host: str = "umat") -> dict[str, bytes]:
    """Return the files of a UMAT by name.

    Args:
        kernel: The kernel's files.
        options: The names of the variables, and the conventions of the host.
        title: The host's name, for people.
        host: The host's name, in the names of files.

    Raises:
        UsageError: The model is none of small strains, or has an input that a UMAT does not get.
    """
    point = find_material_point(kernel, options.point, title, options.kinds)
    context: dict[str, Any] = {
        **point.describe(),
        "block": 1,
        "shear_order": options.shear_order,
        "shears": [SHEARS[s] for s in options.shear_order],
        "times": options.times,
        "numbers": {kind: text.replace("{time}", str(options.times - 1)) for kind, text in NUMBERS.items()},
        "missing": point.list_needs(_NEEDS),
    }
    rows = [_translate_row(row, options) for row in list_rows(point)]
    return render_c_host(kernel, host, title, context, rows, "umat")


def _translate_row(row: HostRow, options: UmatOptions) -> dict[str, Any]:
    """Return a row in Abaqus' components: engineering shear strains, and stresses without the root of two."""
    order = [0, 1, 2, *(SHEARS[s] for s in options.shear_order)]
    scales = [1.0 if c < 3 else 0.5**0.5 for c in order]

    def convert_strain(strain: Row) -> list[float]:
        return [strain[c] / s for c, s in zip(order, scales, strict=True)]

    def convert_stress(stress: Row) -> list[float]:
        return [stress[c] * s for c, s in zip(order, scales, strict=True)]

    def convert_tangent(tangent: Row) -> list[float]:
        # Column by column, as Fortran has it.
        places = list(zip(order, scales, strict=True))
        return [tangent[COMPONENTS * i + j] * a * b for j, b in places for i, a in places]

    old = convert_strain(row.strain_old)
    change = [b - a for a, b in zip(old, convert_strain(row.strain), strict=True)]
    return {
        "stran": list_numbers(old),
        "dstran": list_numbers(change),
        "stress_old": list_numbers(convert_stress(row.stress_old)),
        "states_old": list_numbers(row.states_old),
        "properties": list_numbers(row.properties),
        **{name: list_numbers(numbers) for name, numbers in row.values.items()},
        "stress": row.list_expected(row.stress, convert_stress),
        "states": row.list_expected(row.states),
        "tangent": row.list_expected(row.tangent, convert_tangent),
        "is_solved": int(row.is_solved),
    }

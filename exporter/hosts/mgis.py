"""MFront's generic interface: a behaviour that MGIS loads.

Interface: MGIS 3.1, include/MGIS/Behaviour/BehaviourDataView.hxx and src/LibrariesManager.cxx (its symbols)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from exporter.archive.kernel_container import KernelFiles
from exporter.common.c_text import to_c_identifiers
from exporter.hosts.small_strain import (
    HOST_VALUES,
    OLD_SUFFIX,
    MaterialPoint,
    NumberRange,
    PointOptions,
    find_material_point,
    list_other_numbers,
)
from exporter.hosts.small_strain_cases import HostRow, list_rows
from exporter.hosts.wrapping import format_number, list_numbers, render_c_host

_KINDS = frozenset({"time_step", "temperature_end", "temperature_start"})
# The temperature is the first external state variable; fields come after it.
NUMBERS = {
    "time_step": "d->dt",
    "temperature_end": "external[0]",
    "temperature_start": "external_old[0]",
    "field_end": "external[{index}]",
    "field_start": "external_old[{index}]",
}


@dataclass(frozen=True)
class Hypothesis:
    """A hypothesis of the interface, and the model's component of each of its numbers."""

    name: str
    components: tuple[int, ...]


_SOLID, _PLANE = (0, 1, 2, 5, 4, 3), (0, 1, 2, 5)
HYPOTHESES = (
    Hypothesis("Tridimensional", _SOLID),
    Hypothesis("PlaneStrain", _PLANE),
    Hypothesis("GeneralisedPlaneStrain", _PLANE),
    Hypothesis("Axisymmetrical", _PLANE),
)


def render_mgis(kernel: KernelFiles, options: PointOptions, title: str) -> dict[str, bytes]:
    """Return the files of a behaviour by name. Inputs that are numbers and have no other meaning are external state
    variables. Raises ``UsageError`` for a model that does not fit."""
    known = {name for name, kind in HOST_VALUES.items() if kind in _KINDS}
    fields = list_other_numbers(kernel, options, known)
    options = PointOptions(options.stress, options.strain, options.energy, fields)
    point = find_material_point(kernel, options, title, _KINDS)
    names = _name_numbers(point)
    time_field = fields.index("t") if "t" in fields else None
    stored = kernel.read_parameter_numbers()
    parameters = [v for v in point.properties if v.parameter is not None]
    context: dict[str, Any] = {
        **point.describe(),
        "block": 1,
        "hypotheses": HYPOTHESES,
        "numbers": NUMBERS,
        "fields": fields,
        "time_field": None if time_field is None else time_field + 1,
        **names,
        "parameter_values": [format_number(float(n)) for v in parameters for n in stored[v.name]],
        "bounds": _list_bounds(point, names),
    }
    rows = [_translate_row(row, time_field) for row in list_rows(point)]
    return render_c_host(kernel, "mgis", title, context, rows)


def _name_numbers(point: MaterialPoint) -> dict[str, list[str]]:
    """Return the names of the numbers of states, properties, parameters and fields: identifiers, all different."""
    by_element = [v for v in point.properties if v.parameter is None]
    parameters = [v for v in point.properties if v.parameter is not None]
    groups: Mapping[str, Sequence[str]] = {
        "state_names": _spread(point.states),
        "material_names": _spread(by_element),
        "parameter_names": _spread(parameters),
        "field_names": point.options.fields,
    }
    taken = ["Strain", "Stress", "Temperature"]
    unique = to_c_identifiers([*taken, *(name for group in groups.values() for name in group)])[len(taken) :]
    names = iter(unique)
    return {group: [next(names) for _ in members] for group, members in groups.items()}


def _spread(variables: Sequence[NumberRange]) -> list[str]:
    return [v.name if v.count == 1 else f"{v.name}_{i}" for v in variables for i in range(v.count)]


def _list_bounds(point: MaterialPoint, names: Mapping[str, Sequence[str]]) -> list[dict[str, str]]:
    """Return the range of each variable that was checked, as the interface's bounds."""
    values = point.contract.envelope.values
    ranges = [("Strain", point.options.strain)]
    states = iter(names["state_names"])
    ranges += [(next(states), v.name + OLD_SUFFIX) for v in point.states for _ in range(v.count)]
    material = iter(names["material_names"])
    ranges += [(next(material), v.name) for v in point.properties if v.parameter is None for _ in range(v.count)]
    ranges += list(zip(names["field_names"], point.options.fields, strict=True))
    ranges += [("Temperature", v.name) for v in point.values if v.kind == "temperature_end"]
    return [
        {"name": name, "low": format_number(values[variable].low), "high": format_number(values[variable].high)}
        for name, variable in ranges
        if variable in values
    ]


def _translate_row(row: HostRow, time_field: int | None) -> dict[str, Any]:
    """Return a row in the interface's order of components; a time among the fields says how long the step is."""

    def order(numbers: Sequence[float]) -> list[float]:
        return [numbers[c] for c in _SOLID]

    def order_block(numbers: Sequence[float]) -> list[float]:
        return [numbers[len(_SOLID) * i + j] for i in _SOLID for j in _SOLID]

    step = row.values["time"][1] if time_field is None else row.values["field"][2 * time_field + 1]
    pairs = [row.values["temperature"], *zip(row.values["field"][::2], row.values["field"][1::2], strict=True)]
    return {
        "strain_old": list_numbers(order(row.strain_old)),
        "strain": list_numbers(order(row.strain)),
        "stress_old": list_numbers(order(row.stress_old)),
        "states_old": list_numbers(row.states_old),
        "material": list_numbers(row.own_properties),
        "dt": format_number(step),
        "external_old": list_numbers([start for start, _ in pairs]),
        "external": list_numbers([start + change for start, change in pairs]),
        "stress": row.list_expected(row.stress, order),
        "states": row.list_expected(row.states),
        "tangent": row.list_expected(row.tangent, order_block),
        "is_solved": int(row.is_solved),
    }

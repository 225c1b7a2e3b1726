"""Rows of the contract's cases as a host of material points sees them: the self-tests of hosts call with these."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from exporter.archive.cases import EXTREME_PREFIXES
from exporter.archive.contract import name_output
from exporter.archive.text_cases import CaseNumbers, Numbers
from exporter.hosts.small_strain import COMPONENTS, OLD_SUFFIX, MaterialPoint
from exporter.hosts.variable_cases import take_row, thin_rows
from exporter.hosts.wrapping import list_numbers

Row = tuple[float, ...]


@dataclass(frozen=True)
class Expected:
    """Numbers that a host has to get, and how far from them it may be."""

    values: Row
    allowed: Row


@dataclass(frozen=True)
class HostRow:
    """One step of one point, in the model's components; ``values`` are the host's numbers by kind."""

    strain_old: Row
    strain: Row
    stress_old: Row
    states_old: Row
    properties: Row
    # Those that the model has no values of its own for.
    own_properties: Row
    values: Mapping[str, Row]
    stress: Expected
    states: Expected
    tangent: Expected

    @property
    def is_solved(self) -> bool:
        """Return whether the model gives numbers for it."""
        expected = (self.stress, self.states, self.tangent)
        return all(math.isfinite(value) for e in expected for value in e.values)

    def list_expected(self, expected: Expected, convert: Callable[[Row], Sequence[float]] = list) -> dict[str, str]:
        """List what a host has to get as C has it, in its own components; nothing where there is no result."""
        if not self.is_solved:
            return {"values": "0", "allowed": "0"}
        return {"values": list_numbers(convert(expected.values)), "allowed": list_numbers(convert(expected.allowed))}


def list_rows(point: MaterialPoint) -> list[HostRow]:
    """List some rows of the cases, evenly over them: of those that a host can express."""
    stored = point.kernel.read_case_numbers()
    cases = [c for c in stored if c.method == point.method and not c.name.startswith(EXTREME_PREFIXES)]
    rows = [row for case in cases for row in _list_rows_of(case, point)]
    return thin_rows(rows)


def _list_rows_of(case: CaseNumbers, point: MaterialPoint) -> Iterator[HostRow]:
    spec = point.contract.methods[case.method]
    outputs = dict(zip(map(name_output, spec.outputs), case.outputs, strict=True))
    inputs = dict(zip(spec.inputs, case.inputs, strict=True))
    for row in range(case.rows):
        numbers = {name: take_row(variable.values, row, case.rows) for name, variable in inputs.items()}
        if (host_row := _make_row(numbers, _expect(outputs, row, case.rows, point), point)) is not None:
            yield host_row


def _expect(outputs: Mapping[str, Numbers], row: int, rows: int, point: MaterialPoint) -> dict[str, Expected]:
    block = name_output((point.options.stress, point.options.strain))
    names = {"stress": [point.options.stress], "states": [v.name for v in point.states], "tangent": [block]}
    expected = dict[str, Expected]()
    for role, of_role in names.items():
        values, allowed = list[float](), list[float]()
        for numbers in (outputs[name] for name in of_role if name in outputs):
            bounds, own = numbers.bounds, take_row(numbers.values, row, rows)
            largest = max((abs(float(v)) for v in numbers.values if math.isfinite(v)), default=0.0)
            values += own
            # The strain at the end is that at the start and its change: rounded once more than in the case.
            allowed += [bounds.atol * largest + bounds.rtol * abs(v) + bounds.floor + 1e-12 * largest for v in own]
        expected[role] = Expected(tuple(values), tuple(allowed))
    return expected


def _make_row(inputs: Mapping[str, Row], expected: Mapping[str, Expected], point: MaterialPoint) -> HostRow | None:
    """Make a row of the inputs by name; None where the host has one number for two that differ."""
    options = point.options
    zeros = (0.0,) * COMPONENTS
    strain = inputs.get(options.strain, zeros)
    stress = _agree(inputs, options.stress, zeros)
    states = [_agree(inputs, v.name, (0.0,) * v.count) for v in point.states]
    values = _find_values(inputs, point)
    if stress is None or values is None or any(state is None for state in states):
        return None
    properties: Row = ()
    own = sum((inputs[v.name] for v in point.properties if v.parameter is None), ())
    if point.needs_properties:
        stored = point.kernel.read_parameter_numbers()
        properties = sum((stored[v.name] for v in point.properties if v.parameter is not None), ()) + own
    if not all(map(math.isfinite, (*strain, *stress, *properties, *sum(values.values(), ())))):
        return None
    return HostRow(
        strain_old=inputs.get(options.strain + OLD_SUFFIX, zeros),
        strain=strain,
        stress_old=stress,
        states_old=sum((state for state in states if state is not None), ()),
        properties=properties,
        own_properties=own,
        values=values,
        **expected,
    )


def _agree(inputs: Mapping[str, Row], name: str, otherwise: Row) -> Row | None:
    """Return the numbers of a variable before the step; None where its first guess is another one."""
    both = [inputs[n] for n in (name + OLD_SUFFIX, name) if n in inputs] or [otherwise]
    return both[0] if both[0] == both[-1] else None


def _find_values(inputs: Mapping[str, Row], point: MaterialPoint) -> dict[str, Row] | None:
    """Return start and change of time, temperature and fields: ``time``, ``temperature``, ``fields``."""
    by_kind = {(value.kind, value.index): inputs[value.name][0] for value in point.values}
    count = len(point.options.fields)
    values = dict[str, Row]()
    for name, places in {"time": [0], "temperature": [0], "field": list(range(count))}.items():
        pairs = list[tuple[float, float]]()
        for i in places:
            start, end = by_kind.get((f"{name}_start", i)), by_kind.get((f"{name}_end", i))
            step = by_kind.get((f"{name}_step", i))
            pair = _find_start_and_change(start, end, step)
            if pair is None:
                return None
            pairs.append(pair)
        values[name] = tuple(number for pair in pairs for number in pair)
    return values


def _find_start_and_change(start: float | None, end: float | None, step: float | None) -> tuple[float, float] | None:
    known: Sequence[float] = [v for v in (start, end) if v is not None]
    if start is not None and end is not None:
        if step is not None and not math.isclose(start + step, end, rel_tol=1e-12, abs_tol=1e-12):
            return None
        return start, end - start
    if step is None:
        return (known[0] if known else 0.0), 0.0
    return (start if start is not None else (end or 0.0) - step), step

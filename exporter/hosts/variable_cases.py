"""Rows of the contract's cases, variable by variable, in the order in which a host keeps the numbers of a matrix."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from exporter.archive.cases import EXTREME_PREFIXES
from exporter.archive.contract import name_output
from exporter.archive.kernel_container import KernelFiles

# Rows of a self-test.
MOST = 12
RowType = TypeVar("RowType")
Shape = tuple[int, ...]


@dataclass(frozen=True)
class VariableRow:
    """Inputs of one element, and what each output has to be, by name: numbers in the model's order, and how far from
    them a host may be."""

    inputs: Mapping[str, tuple[float, ...]]
    outputs: Mapping[str, tuple[float, ...]]
    allowed: Mapping[str, tuple[float, ...]]


def list_variable_rows(kernel: KernelFiles, method: str) -> list[VariableRow]:
    """List up to ``MOST`` rows of a method's cases, evenly over them: those whose numbers are all finite."""
    spec = kernel.contract.methods[method]
    names = [*map(name_output, spec.outputs)]
    rows = list[VariableRow]()
    for case in kernel.read_case_numbers():
        if case.method != method or case.name.startswith(EXTREME_PREFIXES):
            continue
        count = case.rows if kernel.contract.batch.ndim else 1
        largest = [max((abs(float(v)) for v in o.values if math.isfinite(v)), default=0.0) for o in case.outputs]
        for row in range(count):
            inputs = [take_row(variable.values, row, count) for variable in case.inputs]
            outputs = [take_row(variable.values, row, count) for variable in case.outputs]
            if not all(math.isfinite(v) for numbers in (*inputs, *outputs) for v in numbers):
                continue
            allowed = [
                tuple(o.bounds.atol * most + o.bounds.rtol * abs(v) + o.bounds.floor for v in values)
                for o, values, most in zip(case.outputs, outputs, largest, strict=True)
            ]
            by_name = [dict(zip(names, numbers, strict=True)) for numbers in (outputs, allowed)]
            rows.append(VariableRow(dict(zip(spec.inputs, inputs, strict=True)), *by_name))
    return thin_rows(rows)


def thin_rows(rows: list[RowType]) -> list[RowType]:
    """Return up to ``MOST`` rows, evenly over all."""
    return rows if len(rows) <= MOST else [rows[i * len(rows) // MOST] for i in range(MOST)]


def take_row(values: Sequence[float], row: int, rows: int) -> tuple[float, ...]:
    """Return the numbers of one row of a variable."""
    count = len(values) // rows
    return tuple(map(float, values[row * count : (row + 1) * count]))


def place_numbers(numbers: Sequence[float], shape: Shape, strides: Shape) -> list[float]:
    """Return numbers that lie row by row at the places that the strides give."""
    placed = [0.0] * len(numbers)
    for flat, number in enumerate(numbers):
        place, left = 0, flat
        for size, stride in zip(reversed(shape), reversed(strides), strict=True):
            place += (left % size) * stride
            left //= size
        placed[place] = number
    return placed

"""Copies from registers to registers, and calls on them: one statement each, or a loop over consecutive registers.

A Jacobian of a hundred unknowns has ten thousand numbers, most of them zeros, and a picture of 20 by 20 pixels four
hundred calls of one function: a statement for each takes a compiler half a minute."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence

from exporter.backends.c_kernel.frame_layout import ARRAYS, TYPES

# Fewer numbers than this are copied one by one, and fewer calls stand one by one.
MANY = 8
_REGISTER = re.compile(r"(f->(?:\w+\.)?\w)\[(\d+)\]\[l\]")
_INDEX = re.compile(r"(?<=->)((?:\w+\.)?\w)\[(\d+)\]")
_C_TYPES = {array: TYPES[dtype] for dtype, array in ARRAYS.items()}


def emit_copies(array: str, registers: Sequence[int], values: Sequence[str]) -> str:
    """Return statements that copy ``values``, of lane ``l``, to registers of ``array``, none of which is also read."""
    statements: list[str] = []
    loops: list[str] = []
    for first, run in _find_runs(array, registers, values):
        if len(run) < MANY:
            lines = [(f"f->{array}[{register}][l]", value) for register, value in enumerate(run, first)]
            statements += [f"    {target} = {value};\n" for target, value in lines if target != value]
        elif run[0] != f"f->{array}[{first}][l]":
            loops.append(_emit_copy_loop(array, first, run))
    if statements:
        loops.insert(0, f"  TF_SIMD\n  for (int l = 0; l < TF_NOW; l++) {{\n{''.join(statements)}  }}\n")
    return "".join(loops)


def emit_repeated(statements: Sequence[str]) -> list[str]:
    """Return statements in their order, with a loop for many that differ only in registers, which are consecutive."""
    lines: list[str] = []
    position = 0
    while position < len(statements):
        run = _count_repeated(statements, position)
        if run < MANY:
            lines += statements[position : position + run]
        else:
            steps = [b - a for a, b in zip(*map(_list_indices, statements[position : position + 2]), strict=True)]
            lines.append(_emit_repetition(statements[position], steps, run))
        position += run
    return lines


def _list_indices(statement: str) -> list[int]:
    return [int(index) for _, index in _INDEX.findall(statement)]


def _count_repeated(statements: Sequence[str], start: int) -> int:
    """Return how many statements from there on differ only in registers that stay, or are the next ones each time."""
    shape, first = _INDEX.sub(r"\1[]", statements[start]), _list_indices(statements[start])
    steps: list[int] | None = None
    for count, statement in enumerate(itertools.islice(statements, start + 1, None), 1):
        if _INDEX.sub(r"\1[]", statement) != shape:
            return count
        distances = [b - a for a, b in zip(first, _list_indices(statement), strict=True)]
        steps = distances if steps is None else steps
        if not {*steps} <= {0, 1} or distances != [step * count for step in steps]:
            return count
    return len(statements) - start


def _emit_repetition(statement: str, steps: Sequence[int], count: int) -> str:
    remaining = iter(steps)
    text = _INDEX.sub(lambda m: f"{m[1]}[{m[2]} + k]" if next(remaining) else m[0], statement)
    body = "".join(f"  {line}\n" for line in text.split("\n"))
    return f"    for (int k = 0; k < {count}; k++) {{\n{body}    }}"


def _find_runs(array: str, registers: Sequence[int], values: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
    """Yield runs of consecutive registers that take one value, or values from consecutive registers of one array."""

    def get_key(index: int) -> tuple[object, ...]:
        register, match = registers[index], _REGISTER.fullmatch(values[index])
        source = (match[1], int(match[2]) - register) if match else values[index]
        return register - index, source

    for _, group in itertools.groupby(range(len(registers)), get_key):
        indices = list(group)
        yield registers[indices[0]], [values[index] for index in indices]


def _emit_copy_loop(array: str, first: int, values: Sequence[str]) -> str:
    match = _REGISTER.fullmatch(values[0])
    lines = [f"{_C_TYPES[array[-1]]} (*const to)[TF_LANES] = &f->{array}[{first}];"]
    if match:
        lines.append(f"{_C_TYPES[match[1][-1]]} (*const from)[TF_LANES] = &{match[1]}[{match[2]}];")
    lines += [
        f"for (int k = 0; k < {len(values)}; k++)",
        "  TF_SIMD",
        f"  for (int l = 0; l < TF_NOW; l++) to[k][l] = {'from[k][l]' if match else values[0]};",
    ]
    return "  {\n" + "".join(f"    {line}\n" for line in lines) + "  }\n"

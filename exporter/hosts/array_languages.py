"""R and Octave (or MATLAB): arrays that lie column by column, a row for each element.

Interfaces: R's .Call (Writing R Extensions, section 5.9); MEX functions, which Octave and MATLAB share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from exporter.archive.contract import name_output
from exporter.archive.kernel_container import KernelFiles
from exporter.hosts.fitting import check_batch, check_double, list_model_parameters
from exporter.hosts.variable_cases import Shape, list_variable_rows, place_numbers
from exporter.hosts.wrapping import name_for_languages, name_function, render


@dataclass(frozen=True)
class ArrayVariable:
    """An input, output or parameter, with a name that both languages take.

    ``place`` is a parameter's place for the kernel, or an input's or output's in its method."""

    name: str
    identifier: str
    shape: Shape
    place: int

    @property
    def count(self) -> int:
        """Return the count of the numbers of one element."""
        return prod(self.shape)


def render_r(kernel: KernelFiles, options: None, title: str) -> dict[str, bytes]:
    """Return the files of a function of R by name. Raises ``UsageError`` for a model that does not fit."""
    return _render(kernel, "r", title, f"{kernel.name}.R", f"lib{kernel.name}_r.so", f"test_{kernel.name}.R")


def render_octave(kernel: KernelFiles, options: None, title: str) -> dict[str, bytes]:
    """Return the files of a MEX function by name. Raises ``UsageError`` for a model that does not fit."""
    return _render(kernel, "octave", title, "", f"{name_function(kernel.name)}.mex", f"test_{kernel.name}.m")


def _render(kernel: KernelFiles, host: str, title: str, script: str, library: str, self_test: str) -> dict[str, bytes]:
    contract = kernel.contract
    check_batch(kernel, title)
    methods = {m: spec for m, spec in contract.methods.items() if m in ("forward", "jacobian")}
    outputs = [contract.output_spec(o) for spec in methods.values() for o in spec.outputs]
    check_double(kernel, (*contract.inputs, *outputs), title)
    parameters = [(place, p) for place, p in list_model_parameters(contract) if len(p.shape) <= 1]
    identifiers = iter(name_for_languages([s.name for s in contract.inputs] + [p.name for _, p in parameters]))
    inputs = [ArrayVariable(s.name, next(identifiers), s.static_shape, i) for i, s in enumerate(contract.inputs)]
    places = {v.name: v.place for v in inputs}
    context: dict[str, Any] = {
        "title": title,
        "script": script,
        "library": library,
        "source": f"{kernel.name}_{host}.c",
        "self_test": self_test,
        "inputs": inputs,
        "parameters": [ArrayVariable(p.name, next(identifiers), p.shape, place) for place, p in parameters],
        "parameter_count": len(contract.parameters),
        "methods": {
            method: {
                "inputs": [places[name] for name in spec.inputs],
                "outputs": [
                    ArrayVariable(name_output(o), "", contract.output_spec(o).static_shape, i)
                    for i, o in enumerate(spec.outputs)
                ],
                "workspace": kernel.workspace[method],
            }
            for method, spec in methods.items()
        },
    }
    context["cases"] = {method: _list_columns(kernel, method, inputs) for method in methods}
    files = {
        f"{kernel.name}_{host}.c": render(f"{host}.c.jinja", kernel, context),
        self_test: render(f"test_{host}.jinja", kernel, context),
        "Makefile": render(f"Makefile_{host}.jinja", kernel, context),
        "README.md": render(f"README_{host}.md.jinja", kernel, context),
    }
    return files | ({script: render(f"{host}.jinja", kernel, context)} if script else {})


def _list_columns(kernel: KernelFiles, method: str, inputs: Sequence[ArrayVariable]) -> dict[str, Any]:
    """Return the rows of a method's cases as arrays that lie column by column."""
    rows = list_variable_rows(kernel, method)
    spec = kernel.contract.methods[method]
    names = list(map(name_output, spec.outputs))
    shapes = {name_output(o): kernel.contract.output_spec(o).static_shape for o in spec.outputs}
    return {
        "rows": len(rows),
        "inputs": [_list_by_columns([row.inputs[v.name] for row in rows], v.shape) for v in inputs],
        "outputs": [_list_by_columns([row.outputs[name] for row in rows], shapes[name]) for name in names],
        "allowed": [_list_by_columns([row.allowed[name] for row in rows], shapes[name]) for name in names],
    }


def _list_by_columns(rows: Sequence[Sequence[float]], shape: Shape) -> list[float]:
    """Return the rows as one array that lies column by column, rows first."""
    strides = tuple(prod(shape[:d]) for d in range(len(shape)))
    columns = zip(*(place_numbers(row, shape, strides) for row in rows), strict=True)
    return [number for column in columns for number in column]

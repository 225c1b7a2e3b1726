"""Differentiable hosts: a kernel as an operator of torch.library, and as a target of jax.ffi, with its Jacobian.

Interfaces: torch.library.custom_op and register_autograd (PyTorch's manual of custom operators); jax.ffi.ffi_call and
jax.custom_jvp (JAX's page on foreign functions)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from exporter.archive.contract import name_output
from exporter.archive.kernel_container import KernelFiles
from exporter.common.errors import UsageError
from exporter.hosts.fitting import check_batch, check_double, list_derived_parameters
from exporter.hosts.variable_cases import Shape, list_variable_rows
from exporter.hosts.wrapping import name_for_languages, render


@dataclass(frozen=True)
class Argument:
    """An argument of the function: an input, or a parameter that the kernel has derivatives of.

    ``parameter`` is its place among the kernel's parameters, ``values`` what was exported: none, for inputs."""

    name: str
    identifier: str
    shape: Shape
    parameter: int | None = None
    values: tuple[float, ...] = ()


@dataclass(frozen=True)
class Block:
    """A block of the Jacobian: places of its output and argument, and its place in the method jacobian."""

    output: int
    argument: int
    place: int


def render_torch(kernel: KernelFiles, options: None, title: str) -> dict[str, bytes]:
    """Return the files of an operator of torch by name. Raises ``UsageError`` for a model that does not fit."""
    return _render(kernel, "torch", title, f"lib{kernel.name}_torch.so", {})


def render_jax(kernel: KernelFiles, options: None, title: str) -> dict[str, bytes]:
    """Return the files of a function of JAX by name. Raises ``UsageError`` for a model that does not fit."""
    return _render(kernel, "jax", title, f"lib{kernel.name}_jax.so", {f"{kernel.name}_jax.cc": "jax.cc.jinja"})


def _render(kernel: KernelFiles, host: str, title: str, library: str, sources: dict[str, str]) -> dict[str, bytes]:
    contract = kernel.contract
    check_batch(kernel, title)
    check_double(kernel, (*contract.inputs, *contract.outputs), title)
    for spec in (*contract.inputs, *contract.outputs):
        if 0 in spec.static_shape:
            what, got = f"{title} takes no variables without numbers", f"shape {list(spec.static_shape)}"
            raise UsageError(what, where=f"{kernel.path}, {spec.name}", got=got, expected="sizes above 0")
    if not contract.inputs:
        what = f"the model has no inputs, whose batch {title} takes"
        raise UsageError(what, where=str(kernel.path), expected="at least one input")
    arguments = _list_arguments(kernel)
    outputs = [(s.name, s.static_shape) for s in contract.outputs]
    jacobian = contract.methods.get("jacobian")
    blocks, known_zeros = _list_blocks(kernel, arguments, [name for name, _ in outputs])
    places = [a.name for a in arguments]
    methods = {name: spec for name, spec in (("forward", contract.methods["forward"]), ("jacobian", jacobian)) if spec}
    context: dict[str, Any] = {
        "title": title,
        "library": library,
        "source": f"{kernel.name}_{host}.py",
        "self_test": f"test_{kernel.name}_{host}",
        "arguments": arguments,
        "outputs": outputs,
        "blocks": blocks,
        "known_zeros": known_zeros,
        "parameter_count": len(contract.parameters),
        "methods": {
            method: {
                "inputs": [places.index(name) for name in spec.inputs],
                "outputs": [(name_output(o), contract.output_spec(o).static_shape) for o in spec.outputs],
                "workspace": kernel.workspace[method],
            }
            for method, spec in methods.items()
        },
    }
    context["cases"] = _list_cases(kernel, arguments, [name for name, _ in outputs], bool(blocks))
    files = {
        f"{kernel.name}_{host}.py": render(f"{host}.py.jinja", kernel, context),
        f"test_{kernel.name}_{host}.py": render("test_differentiable.py.jinja", kernel, {**context, "host": host}),
        "Makefile": render(f"Makefile_{host}.jinja", kernel, context),
        "README.md": render(f"README_{host}.md.jinja", kernel, context),
    }
    return files | {name: render(template, kernel, context) for name, template in sources.items()}


def _list_arguments(kernel: KernelFiles) -> list[Argument]:
    contract = kernel.contract
    stored = kernel.read_parameter_numbers()
    parameters = [(place, p) for place, p in list_derived_parameters(contract) if p.dtype == "float64"]
    names = [s.name for s in contract.inputs] + [p.name for _, p in parameters]
    identifiers = name_for_languages(names)
    arguments = [Argument(s.name, c, s.static_shape) for s, c in zip(contract.inputs, identifiers, strict=False)]
    return arguments + [
        Argument(p.name, c, p.shape, place, tuple(map(float, stored[p.name])))
        for (place, p), c in zip(parameters, identifiers[len(arguments) :], strict=True)
    ]


def _list_blocks(
    kernel: KernelFiles, arguments: Sequence[Argument], outputs: Sequence[str]
) -> tuple[list[Block], list[tuple[int, int]]]:
    """Return the blocks that are stored, and places of output and argument of those that are known to be zero."""
    spec = kernel.contract.methods.get("jacobian")
    if spec is None:
        return [], []
    places = [a.name for a in arguments]
    stored = [
        Block(outputs.index(o[0]), places.index(o[1]), place)
        for place, o in enumerate(spec.outputs)
        if not isinstance(o, str) and o[1] in places
    ]
    return stored, [(outputs.index(o), places.index(wrt)) for o, wrt in spec.zeros if wrt in places]


def _list_cases(
    kernel: KernelFiles, arguments: Sequence[Argument], outputs: Sequence[str], has_blocks: bool
) -> list[dict[str, Any]]:
    """Return rows of the contract's cases as plain lists, with the blocks where the kernel has some."""
    method = "jacobian" if has_blocks else "forward"
    rows = list_variable_rows(kernel, method)
    names = [name for name in map(name_output, kernel.contract.methods[method].outputs) if name not in outputs]
    return [
        {
            "inputs": [list(row.inputs[a.name]) for a in arguments if a.parameter is None],
            "outputs": [(list(row.outputs[name]), list(row.allowed[name])) for name in outputs],
            "blocks": {name: (list(row.outputs[name]), list(row.allowed[name])) for name in names},
        }
        for row in rows
    ]

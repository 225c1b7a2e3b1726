"""Abaqus' user subroutine UMAT of a small-strain model, on its kernel: Fortran that is written from the contract.

Interface and order of components: Abaqus User Subroutines Reference Guide, section 1.1.44 (UMAT). Tensors of the model
are in Mandel notation."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any

from exporter import __version__
from exporter.archive import kernel_container
from exporter.archive.contract import Contract, block_name
from exporter.archive.kernel_container import KernelFiles
from exporter.backends.c_kernel.frame_layout import TEMPLATES, escape_comment
from exporter.common import atomic_files
from exporter.common.errors import UsageError

OLD_SUFFIX = "~1"
# Other values that Abaqus provides, by the names that models use for them.
ABAQUS_VALUES = {"t": "time + dtime", "t~1": "time", "T": "temp + dtemp", "T~1": "temp", "temperature": "temp + dtemp"}


def write_umat(folder: Path, output: Path | None = None, *, stress: str = "stress", strain: str = "strain") -> Path:
    """Write ``NAME_umat.f90`` beside the kernel's sources, or ``output``. Raises ``UsageError`` where the model has no
    such stress, strain or tangent, or has an input that Abaqus does not provide."""
    opened = kernel_container.read(folder)
    path = output or folder / f"{opened.name}_umat.f90"
    atomic_files.write_atomically(path, render_umat(opened, stress, strain).encode())
    return path


def render_umat(opened: KernelFiles, stress: str, strain: str) -> str:
    """Return the Fortran source of the UMAT."""
    contract = opened.contract
    spec = contract.methods.get("jacobian")
    block = (stress, strain)
    if spec is None or block not in spec.outputs:
        what, got = "the kernel has no tangent for a UMAT", ", ".join(spec.output_names if spec else ()) or "none"
        expected = f"the block {block_name(*block)} of the method jacobian"
        mend = f"export it with --derivative {stress}:{strain}, or name other variables with --stress and --strain"
        raise UsageError(what, where=str(opened.path), got=got, expected=expected, mend=mend)
    for name, specs in ((stress, contract.outputs), (strain, contract.inputs)):
        shape = next(s.shape for s in specs if s.name == name)
        if shape != (6,):
            raise UsageError("a UMAT's tensors have six components", where=name, got=str(list(shape)), expected="[6]")
    state, first = [], 1
    input_names = {s.name for s in contract.inputs}
    for output in contract.outputs:
        if output.name != stress and {output.name + OLD_SUFFIX, output.name} & input_names:
            count = prod(output.static_shape)
            state.append({"name": output.name, "first": first, "count": count, "said": _describe_variable(output)})
            first += count
    outputs = [{"count": prod(contract.output_spec(o).static_shape)} for o in spec.outputs]
    for variable in state:
        variable["output"] = spec.outputs.index(variable["name"]) + 1
    properties, numbers = _list_properties(contract)
    own = {p["name"]: p for p in properties if not p["place"]}
    context: dict[str, Any] = {
        "contract": contract,
        "version": __version__,
        "name": opened.name,
        "states": first - 1,
        "state": state,
        "inputs": [_describe_input(contract, name, stress, strain, state, own) for name in spec.inputs],
        "outputs": outputs,
        "stress": spec.outputs.index(stress) + 1,
        "tangent": spec.outputs.index(block) + 1,
        "parameters": len(contract.parameters),
        "properties": properties,
        "numbers": numbers,
        "needs_properties": bool(own),
        "workspace": opened.workspace.get("jacobian", 0),
    }
    return TEMPLATES.get_template("umat.f90.jinja").render(context)


def _describe_variable(spec: Any) -> str:
    shape = f", {' x '.join(map(str, spec.shape))}" if spec.shape else ""
    return escape_comment(f"{spec.name}{shape}")


def _describe_input(
    contract: Contract, name: str, stress: str, strain: str, state: list[dict], own: dict[str, dict]
) -> dict[str, Any]:
    spec = contract.input_spec(name)
    if spec.dtype != "float64":
        raise UsageError("a UMAT's variables are in double precision", where=name, got=spec.dtype, expected="float64")
    entry: dict[str, Any] = {"count": prod(spec.static_shape)}
    if name in own:
        return {**entry, "from": "property", "first": own[name]["first"]}
    current_name = name.removesuffix(OLD_SUFFIX)
    state_variable = next((s for s in state if s["name"] == current_name), None)
    if name in (strain, strain + OLD_SUFFIX):
        return {**entry, "from": "strain" if name == strain else "strain~1"}
    if current_name == stress:
        # The first guess of an implicit model is the stress before the step, too.
        return {**entry, "from": "stress"}
    if state_variable is not None:
        return {**entry, "from": "state", "first": state_variable["first"]}
    if name in ABAQUS_VALUES and not spec.shape:
        return {**entry, "from": ABAQUS_VALUES[name]}
    raise UsageError(
        "the model has an input that Abaqus does not provide",
        where=f"input {name!r}",
        expected=f"{strain}, {stress}, state variables (outputs with an input of the same name and {OLD_SUFFIX}), "
        + ", ".join(ABAQUS_VALUES),
        mend="rename the variable with --rename when the model is exported, or make it a parameter",
    )


def _list_properties(contract: Contract) -> tuple[list[dict[str, Any]], int]:
    """Return the parameters of the model, without the settings of its solvers, and the count of their numbers.

    Those by element are inputs of the kernel, and have no place among its parameters."""
    settings = {f"{s.path}.{n}" for s in contract.solvers for n in s.settings}
    places: list[tuple[int, Any]] = [
        (place, p) for place, p in enumerate(contract.parameters, 1) if p.name not in settings
    ]
    places += [(0, spec) for spec in contract.inputs if spec.name in contract.per_element]
    properties, first = list[dict[str, Any]](), 1
    for place, parameter in places:
        if parameter.dtype == "float64":
            count = prod(parameter.shape)
            description = _describe_variable(parameter)
            entry = {"name": parameter.name, "place": place, "first": first, "count": count, "said": description}
            properties.append(entry)
            first += count
    return properties, first - 1

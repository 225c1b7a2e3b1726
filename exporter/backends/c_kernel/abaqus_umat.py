"""Abaqus' user subroutine of a small-strain model, on its kernel: Fortran that is written from the contract.

Interface and order of components: Abaqus User Subroutines Reference Guide, section 1.1.44 (UMAT). Tensors of the model
are in Mandel notation.
"""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any

from exporter import __version__
from exporter.archive import kernel_container
from exporter.archive.contract import Contract, block_name
from exporter.archive.kernel_container import KernelFiles
from exporter.backends.c_kernel.frame_layout import TEMPLATES, comment
from exporter.common import atomic_files
from exporter.common.errors import UsageError

OLD = "~1"
# What Abaqus gives besides, by the names that models have for it.
GIVEN = {"t": "time + dtime", "t~1": "time", "T": "temp + dtemp", "T~1": "temp", "temperature": "temp + dtemp"}


def write(folder: Path, output: Path | None = None, *, stress: str = "stress", strain: str = "strain") -> Path:
    """``NAME_umat.f90`` beside the kernel's sources, or ``output``. Raises ``UsageError`` where the model has no such
    stress, strain or tangent, or takes what Abaqus does not give."""
    opened = kernel_container.read(folder)
    place = output or folder / f"{opened.name}_umat.f90"
    atomic_files.written(place, text(opened, stress, strain).encode())
    return place


def text(opened: KernelFiles, stress: str, strain: str) -> str:
    contract = opened.contract
    spec = contract.methods.get("jacobian")
    block = (stress, strain)
    if spec is None or block not in spec.outputs:
        raise UsageError(
            "the kernel has no tangent for a UMAT",
            where=str(opened.path),
            got=", ".join(o if isinstance(o, str) else block_name(*o) for o in (spec.outputs if spec else ()))
            or "none",
            expected=f"the block {block_name(*block)} of the method jacobian",
            mend=f"export it with --derivative {stress}:{strain}, or name other variables with --stress and --strain",
        )
    for name, of in ((stress, contract.outputs), (strain, contract.inputs)):
        shape = next(s.shape for s in of if s.name == name)
        if shape != (6,):
            raise UsageError("a UMAT's tensors have six components", where=name, got=str(list(shape)), expected="[6]")
    state, first = [], 1
    taken = {s.name for s in contract.inputs}
    for spec_ in contract.outputs:
        if spec_.name != stress and {spec_.name + OLD, spec_.name} & taken:
            state.append({"name": spec_.name, "first": first, "count": prod(spec_.fixed), "said": _said(spec_)})
            first += prod(spec_.fixed)
    outputs = [{"count": prod(contract.returned(o).fixed)} for o in spec.outputs]
    for one in state:
        one["output"] = spec.outputs.index(one["name"]) + 1
    properties, numbers = _properties(contract)
    given: dict[str, Any] = {
        "contract": contract,
        "version": __version__,
        "name": opened.name,
        "states": first - 1,
        "state": state,
        "inputs": [_input(contract, name, stress, strain, state) for name in spec.inputs],
        "outputs": outputs,
        "stress": spec.outputs.index(stress) + 1,
        "tangent": spec.outputs.index(block) + 1,
        "parameters": len(contract.parameters),
        "properties": properties,
        "numbers": numbers,
        "workspace": opened.workspace.get("jacobian", 0),
    }
    return TEMPLATES.get_template("umat.f90.jinja").render(given)


def _said(spec: Any) -> str:
    shape = f", {' x '.join(map(str, spec.shape))}" if spec.shape else ""
    return comment(f"{spec.name}{shape}")


def _input(contract: Contract, name: str, stress: str, strain: str, state: list[dict[str, Any]]) -> dict[str, Any]:
    spec = contract.taken(name)
    if spec.dtype != "float64":
        raise UsageError("a UMAT's numbers are of double precision", where=name, got=spec.dtype)
    found: dict[str, Any] = {"count": prod(spec.fixed)}
    now = name.removesuffix(OLD)
    held = next((s for s in state if s["name"] == now), None)
    if name in (strain, strain + OLD):
        return {**found, "from": "strain" if name == strain else "strain~1"}
    if now == stress:
        # What an implicit model takes as its first guess is the stress before the step, too.
        return {**found, "from": "stress"}
    if held is not None:
        return {**found, "from": "state", "first": held["first"]}
    if name in GIVEN and not spec.shape:
        return {**found, "from": GIVEN[name]}
    raise UsageError(
        "the model takes what Abaqus does not give",
        where=f"input {name!r}",
        expected=f"{strain}, {stress}, state variables (outputs with an input of the same name and {OLD}), "
        + ", ".join(GIVEN),
        mend="rename the variable with --rename when the model is exported, or make it a parameter",
    )


def _properties(contract: Contract) -> tuple[list[dict[str, Any]], int]:
    """Parameters of the model, and not the settings of its solvers."""
    settings = {f"{s.path}.{n}" for s in contract.solvers for n in s.settings}
    found, first = [], 1
    for place, one in enumerate(contract.parameters, 1):
        if one.name not in settings and one.dtype == "float64":
            found.append({"place": place, "first": first, "count": prod(one.shape), "said": _said(one)})
            first += prod(one.shape)
    return found, first - 1

"""CasADi's external functions: a model and its Jacobian as C that ``casadi.external`` loads.

Interface: CasADi's manual, section 5.3 (Using casadi.external); matrices are stored column by column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from exporter.archive.contract import block_name, name_output
from exporter.archive.kernel_container import KernelFiles
from exporter.common.c_text import escape_comment
from exporter.common.errors import UsageError
from exporter.hosts.fitting import check_double, list_derived_parameters
from exporter.hosts.variable_cases import Shape, VariableRow, list_variable_rows, place_numbers
from exporter.hosts.wrapping import list_numbers, name_for_languages, render_c_host


@dataclass(frozen=True)
class CasadiVariable:
    """An input or output: a matrix of CasADi, and the strides of the kernel's numbers in it."""

    name: str
    identifier: str
    shape: Shape
    # Its place among the kernel's parameters; None for inputs and outputs.
    parameter: int | None = None

    @property
    def rows(self) -> int:
        """Return the rows of CasADi's matrix: tensors of more than two dimensions are a column."""
        return self.shape[0] if len(self.shape) == 2 else prod(self.shape)

    @property
    def columns(self) -> int:
        """Return the columns of CasADi's matrix."""
        return self.shape[1] if len(self.shape) == 2 else 1

    @property
    def count(self) -> int:
        """Return the count of its numbers."""
        return prod(self.shape)

    @property
    def strides(self) -> Shape:
        """Return the strides of its own dimensions in CasADi's matrix."""
        if len(self.shape) == 2:
            return (1, self.shape[0])
        return tuple(prod(self.shape[d + 1 :]) for d in range(len(self.shape)))

    @property
    def description(self) -> str:
        """Return name and shape for people."""
        return escape_comment(f"{self.name}, {self.rows} x {self.columns}")


@dataclass(frozen=True)
class CasadiBlock:
    """A block of the Jacobian: dense, or without numbers where the contract says that it is zero."""

    output: CasadiVariable
    wrt: CasadiVariable
    is_zero: bool

    @property
    def name(self) -> str:
        """Return the contract's name of the block."""
        return block_name(self.output.name, self.wrt.name)

    @property
    def strides(self) -> Shape:
        """Return the strides of the kernel's numbers in a matrix of output times input."""
        return (*self.output.strides, *(self.output.count * s for s in self.wrt.strides))


def render_casadi(kernel: KernelFiles, options: None, title: str) -> dict[str, bytes]:
    """Return the files of a function for CasADi by name.

    Raises:
        UsageError: A variable is not in double precision, or the Jacobian has some blocks and lacks others.
    """
    contract = kernel.contract
    check_double(kernel, (*contract.inputs, *contract.outputs), title)
    inputs = _list_variables([(s.name, s.static_shape) for s in contract.inputs])
    outputs = _list_variables([(s.name, s.static_shape) for s in contract.outputs])
    spec = contract.methods.get("jacobian")
    parameters = _list_parameters(kernel, len(inputs))
    blocks = _list_blocks(kernel, (*inputs, *parameters), outputs)
    methods = [("forward", contract.methods["forward"])] + ([("jacobian", spec)] if spec else [])
    by_name = {v.name: v for v in outputs}
    context: dict[str, Any] = {
        "inputs": inputs,
        "parameters": parameters,
        "parameter_count": len(contract.parameters),
        "outputs": outputs,
        "blocks": blocks,
        "methods": {
            method: {
                # Their places: an output of CasADi's function, or one of the Jacobian's blocks.
                "inputs": [next(i for i, v in enumerate(inputs) if v.name == name) for name in method_spec.inputs],
                "outputs": [
                    _place_output(output, by_name, outputs, blocks, is_jacobian=method == "jacobian")
                    for output in method_spec.outputs
                ],
                "workspace": kernel.workspace[method],
            }
            for method, method_spec in methods
        },
    }
    rows = list_variable_rows(kernel, "jacobian" if spec else "forward")
    translated = [_translate_row(row, kernel, inputs, parameters, outputs, blocks) for row in rows]
    return render_c_host(kernel, "casadi", title, context, translated)


def _list_variables(named: Sequence[tuple[str, Shape]]) -> list[CasadiVariable]:
    identifiers = name_for_languages([name for name, _ in named])
    return [CasadiVariable(n, c, shape) for (n, shape), c in zip(named, identifiers, strict=True)]


def _list_parameters(kernel: KernelFiles, first: int) -> list[CasadiVariable]:
    """Return the parameters of which the kernel has derivatives: they are inputs of the function, after the model's."""
    contract = kernel.contract
    places = list_derived_parameters(contract)
    for _, parameter in places:
        if len(parameter.shape) > 1 or parameter.dtype != "float64":
            got = f"shape {list(parameter.shape)} of {parameter.dtype}"
            what, expected = "a parameter cannot be an input of CasADi", "a number or a vector of float64"
            raise UsageError(what, where=parameter.name, got=got, expected=expected)
    identifiers = name_for_languages([s.name for s in contract.inputs] + [p.name for _, p in places])[first:]
    return [CasadiVariable(p.name, c, p.shape, place) for (place, p), c in zip(places, identifiers, strict=True)]


def _list_blocks(
    kernel: KernelFiles, inputs: Sequence[CasadiVariable], outputs: Sequence[CasadiVariable]
) -> list[CasadiBlock]:
    """Return the blocks of the Jacobian, output by output; none where the kernel has no Jacobian."""
    spec = kernel.contract.methods.get("jacobian")
    if spec is None:
        return []
    stored, zeros = set(spec.outputs), set(spec.zeros)
    pairs = [(o, i) for o in outputs for i in inputs]
    missing = [block_name(o.name, i.name) for o, i in pairs if (o.name, i.name) not in stored | zeros]
    if missing:
        what = "the Jacobian lacks blocks, and CasADi needs all or none"
        more = f" and {len(missing) - 4} more" if len(missing) > 4 else ""
        mend = "export it with --derivative all and all of a parameter's blocks ('*:PARAMETER'), or without derivatives"
        raise UsageError(what, where=str(kernel.path), got=f"without {', '.join(missing[:4])}{more}", mend=mend)
    return [CasadiBlock(o, i, (o.name, i.name) not in stored) for o, i in pairs]


def _place_output(
    output: str | tuple[str, str],
    by_name: dict[str, CasadiVariable],
    outputs: Sequence[CasadiVariable],
    blocks: Sequence[CasadiBlock],
    *,
    is_jacobian: bool,
) -> dict[str, Any]:
    """Say where a method's output goes: ``result`` is its place in CasADi's results, -1 where nobody takes it."""
    if isinstance(output, str):
        variable = by_name[output]
        place = -1 if is_jacobian else list(outputs).index(variable)
        return {"result": place, "strides": variable.strides, "count": variable.count}
    block = next((b for b in blocks if b.name == name_output(output)), None)
    if block is None:
        what, mend = "the Jacobian has a block that is none of CasADi's", "export the model without that derivative"
        raise UsageError(what, where=name_output(output), mend=mend)
    count = block.output.count * block.wrt.count
    return {"result": list(blocks).index(block), "strides": block.strides, "count": count}


def _translate_row(
    row: VariableRow,
    kernel: KernelFiles,
    inputs: Sequence[CasadiVariable],
    parameters: Sequence[CasadiVariable],
    outputs: Sequence[CasadiVariable],
    blocks: Sequence[CasadiBlock],
) -> dict[str, Any]:
    stored = kernel.read_parameter_numbers() if parameters else {}
    taken = [
        *(place_numbers(row.inputs[v.name], v.shape, v.strides) for v in inputs),
        *(stored[p.name] for p in parameters),
    ]
    dense = [b for b in blocks if not b.is_zero]
    of_outputs = [(v.name, v.shape, v.strides) for v in outputs]
    of_blocks = [(b.name, (*b.output.shape, *b.wrt.shape), b.strides) for b in dense]

    def join(numbers: Any, places: Sequence[tuple[str, Shape, Shape]]) -> str:
        return list_numbers(
            [v for name, shape, strides in places for v in place_numbers(numbers[name], shape, strides)]
        )

    return {
        "inputs": list_numbers([v for numbers in taken for v in numbers]),
        "outputs": join(row.outputs, of_outputs),
        "outputs_allowed": join(row.allowed, of_outputs),
        "blocks": join(row.outputs, of_blocks) if dense else "0",
        "blocks_allowed": join(row.allowed, of_blocks) if dense else "0",
    }

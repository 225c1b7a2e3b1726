"""A model of a material point under small strains: which of its variables are strain, stress, state, properties, and
what a host provides.

Tensors of the model have six components in Mandel notation: xx, yy, zz, and yz, xz, xy times the root of two."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from math import prod
from typing import Any

from exporter.archive.contract import Contract, block_name
from exporter.archive.kernel_container import KernelFiles
from exporter.archive.metadata import format_texts
from exporter.archive.tensor_spec import TensorSpec
from exporter.common.c_text import escape_comment
from exporter.common.errors import UsageError, suggest_names
from exporter.hosts.fitting import check_batch, check_double, list_model_parameters

OLD_SUFFIX = "~1"
COMPONENTS = 6
# Numbers that hosts provide, by the names that models use for them.
HOST_VALUES = {
    "t": "time_end",
    "t~1": "time_start",
    "dt": "time_step",
    "T": "temperature_end",
    "T~1": "temperature_start",
    "temperature": "temperature_end",
    "temperature~1": "temperature_start",
}
# The kinds of field variables, and all kinds.
FIELDS = frozenset({"field_end", "field_start"})
ALL_KINDS = frozenset(HOST_VALUES.values()) | FIELDS


@dataclass(frozen=True)
class PointOptions:
    """The names of the variables of a model that have a meaning for a host.

    Attributes:
        stress: The output that is the stress.
        strain: The input that is the strain at the end of a step.
        energy: The output that is the elastic energy of a unit of volume; empty where there is none.
        fields: Inputs that are the host's field variables, in its order.
    """

    stress: str = "stress"
    strain: str = "strain"
    energy: str = ""
    fields: tuple[str, ...] = ()


@dataclass(frozen=True)
class NumberRange:
    """A variable's place among numbers that lie one after the other."""

    name: str
    first: int
    count: int
    description: str
    # Its place among the kernel's parameters; None where it is an input.
    parameter: int | None = None


@dataclass(frozen=True)
class KernelInput:
    """Where the numbers of one input of the kernel lie: ``strain``, ``stress``, ``states``, ``values``, ... from
    ``first`` on; ``shape`` gives their strides."""

    source: str
    first: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class KernelOutput:
    """Where the numbers of one output go; ``unused`` where nobody asks for them."""

    target: str
    first: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class HostValue:
    """A number that the host provides: ``kind`` is one of ``HOST_VALUES``, ``field_end`` or ``field_start``; the latter
    are of field ``index``."""

    name: str
    kind: str
    index: int
    description: str


@dataclass(frozen=True)
class MaterialPoint:
    """A model as a host of material points sees it, and the method of the kernel that is called."""

    kernel: KernelFiles
    options: PointOptions
    method: str
    inputs: tuple[KernelInput, ...]
    outputs: tuple[KernelOutput, ...]
    states: tuple[NumberRange, ...]
    properties: tuple[NumberRange, ...]
    values: tuple[HostValue, ...]

    @property
    def contract(self) -> Contract:
        """Return the model's contract."""
        return self.kernel.contract

    @property
    def state_count(self) -> int:
        """Return the count of the state's numbers."""
        return sum(variable.count for variable in self.states)

    @property
    def property_count(self) -> int:
        """Return the count of the properties' numbers."""
        return sum(variable.count for variable in self.properties)

    @property
    def needs_properties(self) -> bool:
        """Return whether the model has no values of its own for some property."""
        return any(variable.parameter is None for variable in self.properties)

    @property
    def exported_count(self) -> int:
        """Return the count of properties, besides none, that means the values that were exported."""
        return 2 if self.property_count == 1 else 1

    @property
    def properties_note(self) -> str:
        """Return what another count of properties means."""
        if self.needs_properties:
            return ""
        return "two zeros" if self.exported_count == 2 else "one zero"

    @property
    def unused_count(self) -> int:
        """Return the count of the numbers of one element that nobody asks for."""
        return sum(prod(output.shape) for output in self.outputs if output.target == "unused")

    def list_needs(self, needs: Mapping[str, tuple[str, str]]) -> list[tuple[str, str]]:
        """List what the host has to give for the model's numbers, each once: the condition in C, and its words.

        Args:
            needs: Both by the first word of a kind: ``time``, ``temperature``, ``field``.
        """
        return list(dict.fromkeys(needs[value.kind.partition("_")[0]] for value in self.values))

    def describe(self) -> dict[str, Any]:
        """Return what the templates read."""
        return {
            "point": self,
            "workspace": self.kernel.workspace[self.method],
            "parameters": len(self.contract.parameters),
        }


def find_material_point(
    kernel: KernelFiles, options: PointOptions, host: str, kinds: frozenset[str], *, with_tangent: bool = True
) -> MaterialPoint:
    """Find strain, stress, state and properties of a kernel.

    Args:
        kernel: The kernel's files.
        options: The names of its variables.
        host: The host's name, for messages.
        kinds: The kinds of numbers that the host provides.
        with_tangent: Whether the host needs the derivative of the stress wrt the strain.

    Raises:
        UsageError: The model has no such variable, or one that the host does not provide.
    """
    contract = kernel.contract
    _check_variables(kernel, options, host, with_tangent=with_tangent)
    method = "jacobian" if with_tangent else "forward"
    spec = contract.methods[method]
    states = _list_states(contract, options.stress, options.energy)
    properties = _list_properties(contract)
    values = _list_values(contract, spec.inputs, options, states, properties, host, kinds)
    inputs = [_place_input(contract.input_spec(name), options, states, properties, values) for name in spec.inputs]
    targets: Mapping[Any, tuple[str, int]] = {
        **{variable.name: ("states", variable.first) for variable in states},
        options.stress: ("stress", 0),
        (options.stress, options.strain): ("tangent", 0),
        **({options.energy: ("energy", 0)} if options.energy else {}),
    }
    outputs, unused = list[KernelOutput](), 0
    for name in spec.outputs:
        shape = contract.output_spec(name).static_shape
        target, first = targets.get(name, ("unused", unused))
        outputs.append(KernelOutput(target, first, shape))
        unused += prod(shape) if target == "unused" else 0
    return MaterialPoint(kernel, options, method, tuple(inputs), tuple(outputs), states, properties, values)


def list_other_numbers(kernel: KernelFiles, options: PointOptions, known: AbstractSet[str]) -> tuple[str, ...]:
    """List the inputs that are one number and neither strain, stress, state nor property, nor one of the ``known``
    names: fields, by their names at the end of the step."""
    contract = kernel.contract
    states = _list_states(contract, options.stress, options.energy)
    own = {options.strain, options.stress, *(v.name for v in states), *contract.per_element, *known}
    names = [s.name for s in contract.inputs if not s.shape and s.name not in known]
    bases = dict.fromkeys(name.removesuffix(OLD_SUFFIX) for name in names)
    return tuple(base for base in bases if base not in own)


def _check_variables(kernel: KernelFiles, options: PointOptions, host: str, *, with_tangent: bool) -> None:
    contract, where = kernel.contract, str(kernel.path)
    stress, strain, block = options.stress, options.strain, (options.stress, options.strain)
    if strain.endswith(OLD_SUFFIX):
        what, mend = "the strain at the beginning of a step is no strain at its end", f"--strain {strain[:-2]}"
        raise UsageError(what, where="--strain", got=strain, expected=f"a name without {OLD_SUFFIX}", mend=mend)
    for role, name, specs in (("output", stress, contract.outputs), ("input", strain, contract.inputs)):
        names = [s.name for s in specs]
        if name not in names:
            what, expected = f"the model has no {role} {name!r}", ", ".join(names)
            mend = f"name it with --{'stress' if role == 'output' else 'strain'}; {suggest_names(name, names)}"
            raise UsageError(what, where=where, expected=expected, mend=mend)
    spec = contract.methods.get("jacobian" if with_tangent else "forward")
    if with_tangent and (spec is None or block not in spec.outputs):
        what, got = f"the kernel has no tangent for {host}", ", ".join(spec.output_names if spec else ()) or "none"
        expected = f"the block {block_name(*block)} of the method jacobian"
        mend = f"export it with --derivative {stress}:{strain}, or name other variables with --stress and --strain"
        raise UsageError(what, where=where, got=got, expected=expected, mend=mend)
    check_batch(kernel, host)
    check_double(kernel, contract.inputs, host)
    for name, specs in ((stress, contract.outputs), (strain, contract.inputs)):
        variable = next(s for s in specs if s.name == name)
        if variable.shape != (COMPONENTS,):
            got = str(list(variable.shape))
            raise UsageError(f"the tensors of {host} have six components", where=name, got=got, expected="[6]")
    _check_pairs(contract)
    if options.energy:
        energy = next((s for s in contract.outputs if s.name == options.energy), None)
        if energy is None or energy.shape:
            got = "no such output" if energy is None else f"an output of shape {list(energy.shape)}"
            raise UsageError("an energy is one number", where=options.energy, got=got, expected="an output of shape []")


def _check_pairs(contract: Contract) -> None:
    """Raise ``UsageError`` where a value before the step has another shape or dtype than that after it."""
    variables = {s.name: s for s in (*contract.inputs, *contract.outputs)}
    for spec in contract.inputs:
        for other in (contract.outputs, contract.inputs):
            base = next((s for s in other if s.name == spec.name.removesuffix(OLD_SUFFIX)), spec)
            if (base.shape, base.dtype) != (spec.shape, spec.dtype):
                what, expected = "a value before the step is no value of its variable", variables[base.name].describe()
                raise UsageError(what, where=spec.name, got=spec.describe(), expected=expected)


def describe_variable(spec: Any) -> str:
    """Return a variable's name, shape, unit and note, as text that can stand in a comment."""
    shape = f", {' x '.join(map(str, spec.shape))}" if spec.shape else ""
    return escape_comment(f"{spec.name}{shape}{format_texts(spec)}")


def _list_states(contract: Contract, stress: str, energy: str) -> tuple[NumberRange, ...]:
    """Return the outputs that come back as inputs."""
    input_names = {s.name for s in contract.inputs}
    states, first = list[NumberRange](), 0
    for output in contract.outputs:
        if output.name not in (stress, energy) and {output.name + OLD_SUFFIX, output.name} & input_names:
            if output.dtype != "float64":
                what = "a state variable is in double precision"
                raise UsageError(what, where=output.name, got=output.dtype, expected="float64")
            count = prod(output.static_shape)
            states.append(NumberRange(output.name, first, count, describe_variable(output)))
            first += count
    return tuple(states)


def _list_properties(contract: Contract) -> tuple[NumberRange, ...]:
    """Return the parameters of the model, without the settings of its solvers, and then those by element, which are
    inputs of the kernel."""
    own = [(None, spec) for spec in contract.inputs if spec.name in contract.per_element]
    properties, first = list[NumberRange](), 0
    for place, parameter in (*list_model_parameters(contract), *own):
        count = prod(d for d in parameter.shape if isinstance(d, int))
        properties.append(NumberRange(parameter.name, first, count, describe_variable(parameter), place))
        first += count
    return tuple(properties)


def _list_values(
    contract: Contract,
    names: tuple[str, ...],
    options: PointOptions,
    states: tuple[NumberRange, ...],
    properties: tuple[NumberRange, ...],
    host: str,
    kinds: frozenset[str],
) -> tuple[HostValue, ...]:
    """Return the inputs that are numbers of the host. Raises ``UsageError`` for one that it does not provide."""
    own = {options.strain, options.stress, *(v.name for v in states)}
    own |= {name + OLD_SUFFIX for name in own} | {v.name for v in properties if v.parameter is None}
    fields = {name: ("field_end", i) for i, name in enumerate(options.fields)}
    fields |= {name + OLD_SUFFIX: ("field_start", i) for name, (_, i) in fields.items()}
    provided = {name: (kind, 0) for name, kind in HOST_VALUES.items() if kind in kinds} | fields
    if taken := [f for f in options.fields if f in own]:
        what, expected = f"{taken[0]!r} is the strain, the stress, a state variable or a property", "another input"
        raise UsageError(what, where="--field", got=taken[0], expected=expected, mend="leave this --field out")
    if unknown := [f for f in options.fields if not {f, f + OLD_SUFFIX} & set(names)]:
        known = [name for name in names if name not in own]
        what, mend = f"the model has no input {unknown[0]!r}", suggest_names(unknown[0], known)
        raise UsageError(what, where="--field", expected=", ".join(known) or "none", mend=mend)
    values = list[HostValue]()
    for name in names:
        if name in own:
            continue
        spec = contract.input_spec(name)
        if name not in provided or spec.shape:
            raise UsageError(
                f"the model has an input that {host} does not provide",
                where=f"input {describe_variable(spec)}",
                expected=f"{options.strain}, {options.stress}, state variables (outputs with an input of the same name "
                f"and {OLD_SUFFIX}), " + ", ".join(provided),
                mend=("name a number with --field, " if kinds >= FIELDS else "")
                + "rename the variable with --rename when the model is exported, or make it a parameter",
            )
        kind, index = provided[name]
        values.append(HostValue(name, kind, index, describe_variable(spec)))
    return tuple(values)


def _place_input(
    spec: TensorSpec,
    options: PointOptions,
    states: tuple[NumberRange, ...],
    properties: tuple[NumberRange, ...],
    values: tuple[HostValue, ...],
) -> KernelInput:
    name, shape = spec.name, spec.static_shape
    current = name.removesuffix(OLD_SUFFIX)
    by_element = {v.name: v.first for v in properties if v.parameter is None}
    of_states = {v.name: v.first for v in states}
    if name in by_element:
        return KernelInput("properties", by_element[name], shape)
    if current == options.strain:
        return KernelInput("strain" if name == current else "strain_old", 0, shape)
    if current == options.stress:
        # The first guess of an implicit model is the stress before the step, too.
        return KernelInput("stress_old", 0, shape)
    if current in of_states:
        return KernelInput("states_old", of_states[current], shape)
    return KernelInput("values", next(i for i, value in enumerate(values) if value.name == name), shape)

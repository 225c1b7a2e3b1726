"""FMUs of FMI 3.0 and 2.0: rates for model exchange and co-simulation, steps for co-simulation, with no runtime inside.

Interface: FMI 3.0.2 and 2.0.4 (fmi-standard.org). Every number is a variable of its own, in both versions."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

from exporter.archive.contract import ParameterSpec, name_output
from exporter.archive.kernel_container import KernelFiles
from exporter.archive.metadata import Metadata
from exporter.archive.tensor_spec import TensorSpec
from exporter.common.c_text import to_c_identifiers
from exporter.common.errors import UsageError, suggest_names
from exporter.hosts.fitting import check_double, list_model_parameters
from exporter.hosts.small_strain import OLD_SUFFIX
from exporter.hosts.variable_cases import Shape, list_variable_rows
from exporter.hosts.wrapping import format_number, list_numbers, render

TIME, OLD_TIME, STEP = "t", "t~1", "dt"
Specs = Mapping[str, TensorSpec]
# Numbers of the FMU's own.
_RESERVED = ("time", "solver_relative_tolerance", "solver_absolute_tolerance")


@dataclass(frozen=True)
class FmuOptions:
    """What an FMU is written for.

    Attributes:
        version: ``3.0`` or ``2.0``.
        rates: Pairs of an input that is a continuous state and the output that is its rate.
    """

    version: str = "3.0"
    rates: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        if self.version not in ("3.0", "2.0"):
            what, expected = "there is no such version of FMI here", "3.0 or 2.0"
            raise UsageError(what, where="--fmi", got=self.version, expected=expected)


@dataclass(frozen=True)
class FmuNumber:
    """One number of the FMU: its reference is its place. ``settable`` is 1 always, 2 before the first step, or 0."""

    name: str
    reference: int
    causality: str
    variability: str
    settable: int
    start_value: float
    initial: str = ""
    has_start: bool = True
    derivative: int | None = None
    description: str = ""
    unit: str = ""
    quantity: str = ""

    @property
    def start(self) -> str:
        """Return the start as C reads it."""
        return format_number(self.start_value)

    @property
    def start_text(self) -> str:
        """Return the start as XML has it."""
        return repr(self.start_value)


@dataclass(frozen=True)
class _Group:
    """A variable of the model: the references of its numbers, one after the other."""

    name: str
    shape: Shape
    first: int

    @property
    def count(self) -> int:
        return prod(self.shape)

    @property
    def references(self) -> range:
        return range(self.first, self.first + self.count)


class _Layout:
    """The numbers in the order of their references, and the variables that they are of."""

    def __init__(self) -> None:
        self.numbers: list[FmuNumber] = []
        self.groups: dict[str, _Group] = {}
        self.parameters: dict[str, _Group] = {}
        self._taken: list[str] = list(_RESERVED)

    def add(
        self,
        name: str,
        shape: Shape,
        starts: Sequence[float],
        spec: TensorSpec | ParameterSpec | None = None,
        **attributes: Any,
    ) -> _Group:
        group = _Group(name, shape, len(self.numbers))
        derivative = attributes.pop("derivative", None)
        is_own = attributes.pop("is_own", False)
        base = name if is_own else to_c_identifiers([*self._taken, name])[-1]
        self._taken.append(base)
        spec = spec or TensorSpec(name)
        description = ": ".join(filter(None, (name if name != base else "", spec.description)))
        for i, place in enumerate(product(*(range(1, d + 1) for d in shape))):
            self.numbers.append(
                FmuNumber(
                    name=base + (f"[{','.join(map(str, place))}]" if place else ""),
                    reference=len(self.numbers),
                    start_value=float(starts[i]),
                    description=description,
                    unit=spec.unit,
                    quantity=spec.quantity,
                    derivative=None if derivative is None else derivative.first + i,
                    **attributes,
                )
            )
        if not is_own:
            (self.parameters if attributes["causality"] == "parameter" else self.groups)[name] = group
        return group


@dataclass(frozen=True)
class _Roles:
    """Which variables of the model are what."""

    states: Mapping[str, str]
    # Inputs that are the value of another variable one step before, by that variable's name.
    memory: Mapping[str, str]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    steps: bool


def render_fmu(kernel: KernelFiles, options: FmuOptions, title: str) -> dict[str, bytes]:
    """Return the files of an FMU by name.

    Raises:
        UsageError: A variable is not in double precision, a rate does not fit its state, or a model of rates has inputs
            from the step before.
    """
    roles = _find_roles(kernel, options)
    layout, memory = _lay_out(kernel, options, roles)
    blocks = _find_jacobian(kernel, options)
    rows = list_variable_rows(kernel, "forward")
    places = _Places(kernel, options, roles, layout, memory, blocks)
    identity = f"{kernel.contract.graph} {options} {[n.name for n in layout.numbers]}"
    version = options.version[0]
    source, self_test = f"{kernel.name}_fmu.c", f"test_{kernel.name}_fmu"
    methods = ["forward", *(["jacobian"] if blocks is not None else [])]
    states = [layout.groups[y] for y in roles.states]
    context: dict[str, Any] = {
        "title": f"{title} {options.version}",
        "source": source,
        "self_test": self_test,
        "library": f"{kernel.name}.so",
        "fmi": version,
        "token": hashlib.sha256(identity.encode()).hexdigest(),
        "values": layout.numbers,
        "said": _describe_model(kernel.contract.metadata),
        "units": list(dict.fromkeys(number.unit for number in layout.numbers if number.unit)),
        "memory": [
            {"first": f, "reference": layout.groups[n].first, "count": layout.groups[n].count} for n, f in memory
        ],
        "memory_count": sum(layout.groups[n].count for n, _ in memory),
        "steps": roles.steps,
        "states": [r for group in states for r in group.references],
        "rates": [r for rate in roles.states.values() for r in layout.groups[rate].references],
        "state_count": sum(group.count for group in states),
        "has_jacobian": blocks is not None,
        "parameters": places.list_parameters(),
        "methods": {method: places.describe(method) for method in methods},
        "unused_count": max(places.count_unused(method) for method in methods),
        "state_names": ", ".join(roles.states),
    }
    context["cases"] = [case for row in rows if (case := places.translate(row.inputs, row.outputs, row.allowed))]
    description = (
        {} if version == "2" else {"buildDescription.xml": render("buildDescription.xml.jinja", kernel, context)}
    )
    return description | {
        source: render(f"fmi{version}.c.jinja", kernel, context),
        f"{self_test}.c": render("test_fmu.c.jinja", kernel, context),
        "modelDescription.xml": render(f"modelDescription{version}.xml.jinja", kernel, context),
        "Makefile": render("Makefile_fmu.jinja", kernel, context),
        "README.md": render("README_fmu.md.jinja", kernel, context),
    }


def _describe_model(metadata: Metadata) -> dict[str, str]:
    """Return what is said of the model by the attributes that FMI has for it."""
    description = " ".join([*metadata.description.split(), *(f"Reference: {text}" for text in metadata.references)])
    return {"description": description, "author": "; ".join(metadata.authors), "license": metadata.license}


def _find_roles(kernel: KernelFiles, options: FmuOptions) -> _Roles:
    contract, where = kernel.contract, str(kernel.path)
    inputs, outputs = ({s.name: s for s in specs} for specs in (contract.inputs, contract.outputs))
    rename = "rename one of them with --rename when the model is exported"
    check_double(kernel, contract.inputs, "an FMU")
    _check_times(inputs, where)
    _check_rates(options.rates, inputs, outputs)
    states = dict(options.rates)
    memory = _find_memory(inputs, outputs, states)
    steps = bool(memory) or OLD_TIME in inputs or STEP in inputs
    if steps and states:
        got = ", ".join([*memory, *(n for n in (OLD_TIME, STEP) if n in inputs)])
        what, expected = "a model of rates has inputs from the step before", "inputs of the present only"
        raise UsageError(what, where=where, got=got, expected=expected, mend="leave --rate away")
    plain = tuple(n for n in inputs if n not in {*states, *memory, TIME, OLD_TIME, STEP})
    if shared := [name for name in (*states, *plain) if name in outputs]:
        raise UsageError("an input and an output have one name", where=shared[0], mend=rename)
    of_float = tuple(n for n, spec in outputs.items() if spec.dtype == "float64" and n not in states.values())
    return _Roles(states, memory, plain, of_float, steps)


def _check_times(inputs: Specs, where: str) -> None:
    """Raise ``UsageError`` for a time that is no number."""
    for name in (TIME, OLD_TIME, STEP):
        if name in inputs and inputs[name].shape:
            what, mend = (
                f"the input {name!r} is the time of an FMU",
                "rename it with --rename when the model is exported",
            )
            raise UsageError(what, where=where, got=inputs[name].describe(), expected="one number", mend=mend)


def _check_rates(rates: Sequence[tuple[str, str]], inputs: Specs, outputs: Specs) -> None:
    """Raise ``UsageError`` for a state or rate that the model has not, that does not fit, or that is named twice."""
    for state, rate in rates:
        for name, known, role in ((state, inputs, "input"), (rate, outputs, "output")):
            if name not in known:
                what, mend = f"the model has no {role} {name!r}", suggest_names(name, list(known))
                raise UsageError(what, where="--rate", expected=", ".join(known), mend=mend)
        if inputs[state].shape != outputs[rate].shape or outputs[rate].dtype != "float64":
            got, mend = (
                f"{outputs[rate].describe()} of {inputs[state].describe()}",
                "name the output that is d STATE / dt",
            )
            raise UsageError("a rate has the shape of its state", where="--rate", got=got, mend=mend)
    if any(len(set(names)) < len(names) for names in zip(*rates, strict=True)):
        what, got = "a state has one rate, and a rate one state", ", ".join(":".join(pair) for pair in rates)
        raise UsageError(what, where="--rate", got=got, expected="each name once")


def _find_memory(inputs: Specs, outputs: Specs, states: Mapping[str, str]) -> dict[str, str]:
    """Return the inputs that are the value of another variable one step before, by that variable's name."""
    memory = dict[str, str]()
    for name, spec in inputs.items():
        base = name.removesuffix(OLD_SUFFIX)
        if name in (*states, TIME, OLD_TIME, STEP):
            continue
        if (name != base and base in {*inputs, *outputs}) or base in outputs:
            memory[name] = base
            variable = outputs.get(base) or inputs[base]
            if (variable.shape, variable.dtype) != (spec.shape, spec.dtype):
                what = "a value before the step is no value of its variable"
                raise UsageError(what, where=name, got=spec.describe(), expected=variable.describe())
    return memory


def _lay_out(kernel: KernelFiles, options: FmuOptions, roles: _Roles) -> tuple[_Layout, list[tuple[str, int]]]:
    """Return the numbers by reference, and the variables that are remembered, with their first place there."""
    contract = kernel.contract
    starts = _find_starts(kernel)
    layout = _Layout()
    own = {"causality": "independent", "variability": "continuous", "settable": 0, "has_start": False}
    layout.add("time", (), [0.0], is_own=True, **own)
    tunable = {"causality": "parameter", "variability": "tunable", "settable": 1, "initial": "exact"}
    if roles.states:
        for name, start in zip(_RESERVED[1:], (1e-6, 1e-9), strict=True):
            layout.add(name, (), [start], is_own=True, **tunable)
    stored = kernel.read_parameter_numbers()
    for _, parameter in list_model_parameters(contract):
        numbers = [float(v) for v in stored[parameter.name]]
        layout.add(parameter.name, parameter.shape, numbers, parameter, **tunable)
    for name in roles.inputs:
        spec = contract.input_spec(name)
        changing = {"causality": "input", "variability": "continuous", "settable": 1}
        layout.add(name, spec.static_shape, starts[name], spec, **changing)
    kept = {"causality": "output", "variability": "continuous", "settable": 2, "initial": "exact"}
    for name in roles.states:
        spec = contract.input_spec(name)
        layout.add(name, spec.static_shape, starts[name], spec, **kept)
    computed = {"causality": "output", "variability": "continuous", "settable": 0, "initial": "calculated"}
    for name in roles.outputs:
        spec = contract.output_spec(name)
        shape = spec.static_shape
        before = next((n for n, base in roles.memory.items() if base == name), "")
        if before:
            layout.add(name, shape, starts[before], spec, **kept)
        elif roles.steps:
            # There is no result before the first step.
            layout.add(name, shape, [0.0] * prod(shape), spec, **kept)
        else:
            layout.add(name, shape, [0.0] * prod(shape), spec, has_start=False, **computed)
    for state, rate in options.rates:
        spec = contract.output_spec(rate)
        local = {**computed, "causality": "local", "has_start": False, "derivative": layout.groups[state]}
        layout.add(rate, spec.static_shape, [0.0] * layout.groups[state].count, spec, **local)
    memory, first = list[tuple[str, int]](), 0
    for name in dict.fromkeys(roles.memory.values()):
        memory.append((name, first))
        first += layout.groups[name].count
    return layout, memory


def _find_starts(kernel: KernelFiles) -> dict[str, tuple[float, ...]]:
    """Return numbers of each input to start from: those of the first row of the cases, or zeros."""
    rows = list_variable_rows(kernel, "forward")
    if rows:
        return dict(rows[0].inputs)
    return {s.name: (0.0,) * prod(s.static_shape) for s in kernel.contract.inputs}


def _find_jacobian(kernel: KernelFiles, options: FmuOptions) -> frozenset[tuple[str, str]] | None:
    """Return the blocks of the rates by the states that are stored; None where some are neither stored nor zero."""
    spec = kernel.contract.methods.get("jacobian")
    if spec is None or not options.rates:
        return None
    pairs = {(rate, state) for _, rate in options.rates for state, _ in options.rates}
    stored = pairs & {o for o in spec.outputs if not isinstance(o, str)}
    return frozenset(stored) if pairs <= stored | set(spec.zeros) else None


class _Places:
    """Where the kernel's variables lie in the memory of an FMU's instance, and the rows of its self-test."""

    def __init__(
        self,
        kernel: KernelFiles,
        options: FmuOptions,
        roles: _Roles,
        layout: _Layout,
        memory: Sequence[tuple[str, int]],
        blocks: frozenset[tuple[str, str]] | None,
    ) -> None:
        self._contract, self._workspace = kernel.contract, kernel.workspace
        self._options, self._roles, self._layout = options, roles, layout
        self._memory = dict(memory)
        self._blocks = blocks or frozenset()

    def list_parameters(self) -> list[dict[str, int]]:
        """List the parameters: their place for the kernel, and the reference of their first number."""
        groups = self._layout.parameters
        return [
            {"parameter": place, "reference": groups[p.name].first}
            for place, p in enumerate(self._contract.parameters)
            if p.name in groups
        ]

    def describe(self, method: str) -> dict[str, Any]:
        """Describe a method's arguments as C."""
        spec = self._contract.methods[method]
        return {
            "inputs": [self._place_input(name) for name in spec.inputs],
            "outputs": list(self._place_outputs(spec.outputs)),
            "workspace": self._workspace[method],
        }

    def count_unused(self, method: str) -> int:
        """Count the numbers that nobody asks for."""
        outputs = self._contract.methods[method].outputs
        return sum(prod(self._contract.output_spec(o).static_shape) for o in outputs if not self._is_used(o))

    def _is_used(self, output: str | tuple[str, str]) -> bool:
        return output in self._layout.groups if isinstance(output, str) else output in self._blocks

    def _place_input(self, name: str) -> str:
        if name in (TIME, OLD_TIME, STEP):
            return {TIME: "&time", OLD_TIME: "&m->last_time", STEP: "&step"}[name]
        if name in self._roles.memory:
            return f"m->memory + {self._memory[self._roles.memory[name]]}"
        return f"m->values + {self._layout.groups[name].first}"

    def _place_outputs(self, outputs: Sequence[str | tuple[str, str]]) -> Iterator[dict[str, str]]:
        unused = 0
        for output in outputs:
            shape = self._contract.output_spec(output).static_shape
            if not self._is_used(output):
                yield {"place": f"m->unused + {unused}", "strides": ""}
                unused += prod(shape)
            elif isinstance(output, str):
                yield {"place": f"m->values + {self._layout.groups[output].first}", "strides": ""}
            else:
                yield self._place_block(output)

    def _place_block(self, block: tuple[str, str]) -> dict[str, str]:
        """Place a block in the matrix of all rates by all states, which lies row by row."""
        states = [state for state, _ in self._options.rates]
        counts = [self._layout.groups[state].count for state in states]
        rate_names = [rate for _, rate in self._options.rates]
        row = sum(counts[: rate_names.index(block[0])])
        column = sum(counts[: states.index(block[1])])
        shapes = (self._layout.groups[name].shape for name in block)
        of_rate, of_state = ([prod(s[d + 1 :]) for d in range(len(s))] for s in shapes)
        total = sum(counts)
        strides = [0, *(total * s for s in of_rate), *of_state]
        return {"place": f"m->jacobian + {row * total + column}", "strides": ", ".join(map(str, strides))}

    def translate(
        self,
        inputs: Mapping[str, tuple[float, ...]],
        outputs: Mapping[str, tuple[float, ...]],
        allowed: Mapping[str, tuple[float, ...]],
    ) -> dict[str, str] | None:
        """Return a row of the self-test: what is set before and after initialization, the step, and what comes out.
        None where an FMU is not called so: steps of no time, or two values for one."""
        start = inputs.get(OLD_TIME, inputs.get(TIME, (0.0,)))[0]
        step = inputs[STEP][0] if STEP in inputs else inputs.get(TIME, (start + 1.0,))[0] - start
        if OLD_TIME in inputs and TIME in inputs and STEP in inputs and inputs[TIME][0] != start + step:
            return None
        if self._roles.steps and TIME in inputs and OLD_TIME not in inputs:
            step = step or 1.0
            start = inputs[TIME][0] - step
        if self._roles.steps and step <= 0:
            return None
        before, after = dict[int, float](), dict[int, float]()
        for name, numbers in inputs.items():
            if name in self._roles.memory:
                places = self._layout.groups[self._roles.memory[name]].references
                known = [before[r] for r in places if r in before]
                if known and known != list(numbers):
                    return None
                before |= dict(zip(places, numbers, strict=True))
            elif name in self._layout.groups:
                target = before if name in self._roles.states else after
                target |= dict(zip(self._layout.groups[name].references, numbers, strict=True))
        expected = [
            (reference, number, bound)
            for name in map(name_output, self._contract.methods["forward"].outputs)
            if name in self._layout.groups
            for reference, number, bound in zip(
                self._layout.groups[name].references, outputs[name], allowed[name], strict=True
            )
        ]
        return {
            "start": format_number(start if self._roles.steps else inputs.get(TIME, (0.0,))[0]),
            "step": format_number(step if self._roles.steps else 1.0),
            "before": _list_pairs(before),
            "after": _list_pairs(after),
            "expected": ", ".join(f"{{ {r}, {list_numbers([n, b])} }}" for r, n, b in expected),
            "counts": f"{len(before)}, {len(after)}, {len(expected)}",
        }


def _list_pairs(numbers: Mapping[int, float]) -> str:
    return ", ".join(f"{{ {reference}, {format_number(v)} }}" for reference, v in numbers.items()) or "{ 0, 0 }"

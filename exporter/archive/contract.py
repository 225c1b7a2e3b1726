"""The contract of an archive: names, shapes, dtypes, methods, tolerances. Uses no files and no torch.

Schema 1. The text form is JSON; reading is strict, so a damaged contract or one edited by hand is rejected with
the path of the field at fault."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from exporter.archive.contract_text import (
    StrictlyRead,
    check_label,
    check_limits,
    check_name,
    check_unit,
    describe_invalid,
    is_identifier,
    parse_strictly,
)
from exporter.archive.format_limits import MAX_RELATIVE_TOLERANCE
from exporter.archive.metadata import TEXT_FIELDS, Metadata, VariableTexts
from exporter.archive.tensor_spec import Signature, TensorSpec, check_dtype
from exporter.archive.value_structure import Structure, check_structure
from exporter.common.errors import ArchiveError, SchemaError, UsageError, suggest_names
from exporter.common.units import divide_units

SCHEMA = 1


@dataclass(frozen=True)
class Origin(StrictlyRead):
    """The source of the model; ``sha256`` is the digest of the input file.

    ``files`` are the digests of it and of the user's files that it uses, by name, and ``revision`` is the commit of git
    that their folder is at."""

    kind: str
    library: str
    version: str
    model: str
    sha256: str
    refused_imports: tuple[str, ...] = ()
    revision: str = ""
    files: dict[str, str] = field(default_factory=dict)


# The largest batch that eager mode runs.
LARGEST_RUN = 1_000


@dataclass(frozen=True)
class Batch(StrictlyRead):
    """``ndim`` 1: independent elements, any number of leading dimensions; 0: full shapes, fixed but for open sizes.

    ``sizes`` (of the batch, or of the first open size) and ``ranks`` are those that verification ran; ``limits`` says
    which others were not run, and why."""

    ndim: int
    sizes: tuple[int, ...] = ()
    ranks: tuple[int, ...] = ()
    limits: str = ""

    def __post_init__(self) -> None:
        if self.ndim not in (0, 1):
            raise UsageError("a batch has one dimension, or there is none", got=str(self.ndim), expected="0 or 1")

    @property
    def has_large(self) -> bool:
        """Return whether so large a batch was run that larger ones are verified, and may be processed in chunks."""
        return max(self.sizes, default=0) >= LARGEST_RUN

    def with_one_dimension(self) -> Batch:
        """Return the batch as a container has it that takes one batch dimension."""
        return dataclasses.replace(self, ranks=(1,)) if self.ndim else self

    def explain_limits(self) -> str:
        """Explain why no larger batch is verified."""
        return self.limits or f"the contract names no size of {LARGEST_RUN:,}"


# Prefixes of variable names: what ``jvp`` pushes forward, and what ``vjp`` pulls back.
TANGENT, COTANGENT = "tangent:", "cotangent:"


@dataclass(frozen=True)
class MethodSpec(StrictlyRead):
    """Names of a method's inputs and outputs, in call order.

    A Jacobian block is ``(output, input)`` or ``(output, parameter)``; ``tangent:a`` and ``cotangent:a`` have the shape
    of ``a``. ``how`` says how derivatives are computed; ``zeros`` lists the blocks that are left out because the output
    does not depend on the input or parameter, ``symmetric`` those that are second derivatives of a potential."""

    inputs: tuple[str, ...]
    outputs: tuple[str | tuple[str, str], ...]
    needs_grad: bool = False
    how: str = ""
    zeros: tuple[tuple[str, str], ...] = ()
    symmetric: tuple[tuple[str, str], ...] = ()

    @property
    def output_names(self) -> tuple[str, ...]:
        """Return the names of the outputs and of the Jacobian blocks."""
        return tuple(map(name_output, self.outputs))


def block_name(output: str, wrt: str) -> str:
    """Return the name of a Jacobian block."""
    return f"d {output} / d {wrt}"


def name_output(output: str | tuple[str, str]) -> str:
    """Return the name of an output or of a Jacobian block."""
    return output if isinstance(output, str) else block_name(*output)


def strip_prefix(name: str) -> str:
    """Return the variable that a tangent or cotangent belongs to."""
    return name.removeprefix(COTANGENT) if name.startswith(COTANGENT) else name.removeprefix(TANGENT)


@dataclass(frozen=True)
class ParameterSpec(StrictlyRead, VariableTexts):
    """A tensor that can be changed in place after loading; ``name`` is its attribute path in the file."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    unit: str = ""
    quantity: str = ""
    description: str = ""

    def describe(self) -> str:
        """Return name, shape, dtype, unit and what is said of it as text."""
        unit, note = f" {self.unit}" if self.unit else "", f" ({self.note})" if self.note else ""
        return f"{self.name} {list(self.shape)} {self.dtype}{unit}{note}"

    def check_shape(self, shape: Sequence[int]) -> None:
        """Raise ``UsageError`` if a value of this shape cannot be set."""
        if tuple(shape) != self.shape:
            got, expected = str(list(shape)), str(list(self.shape))
            mend = "give one value for the whole batch: what differs by element is an input of the model"
            raise UsageError(f"parameter {self.name!r} has another shape", got=got, expected=expected, mend=mend)


@dataclass(frozen=True)
class Solver(StrictlyRead):
    """An implicit update in the file. ``settings`` are tensors at ``path`` that can be set like parameters;
    ``on_failure`` says what an element that does not converge becomes: ``nan``, its ``last`` iterate, or an error
    (``raise``)."""

    path: str
    settings: dict[str, float]
    on_failure: Literal["nan", "last", "raise"]

    def without_errors(self) -> Solver:
        """Return the solver as a container has it that raises no errors."""
        return dataclasses.replace(self, on_failure="nan") if self.on_failure == "raise" else self


# Outputs of ``newton_info``, for each solve.
COUNT = "iterations"
NEWTON_OUTPUTS = {COUNT: "int64", "residual_norm": "float64", "status": "int64"}


@dataclass(frozen=True)
class Bounds(StrictlyRead):
    """Tolerances of one output or dtype. ``floor`` is the rounding error of a derivative that is zero."""

    rtol: float
    atol: float
    floor: float = 0.0

    def check_range(self) -> None:
        """Raise ``UsageError`` for bounds within which numbers that differ by as much as they are large would pass."""
        if not (0 <= self.rtol <= MAX_RELATIVE_TOLERANCE and 0 <= self.atol <= MAX_RELATIVE_TOLERANCE):
            got, expected = f"rtol {self.rtol:g}, atol {self.atol:g}", f"numbers from 0 to {MAX_RELATIVE_TOLERANCE:g}"
            raise UsageError("a tolerance is out of range", got=got, expected=expected)
        if not 0 <= self.floor < math.inf:
            got, expected = f"floor {self.floor:g}", "0, or a number above"
            raise UsageError("a tolerance is out of range", got=got, expected=expected)

    def is_wider(self, other: Bounds) -> bool:
        """Return whether numbers pass these bounds that do not pass others."""
        return self.rtol > other.rtol or self.atol > other.atol or self.floor > other.floor

    def describe(self) -> str:
        """Return the bounds as text: ``1e-10, 1e-12`` for rtol and atol, with the floor behind them if there is one."""
        if not (self.rtol or self.atol or self.floor):
            return "exact"
        return f"{self.rtol:.0e}, {self.atol:.0e}" + (f", {self.floor:.0e}" if self.floor else "")


@dataclass(frozen=True)
class Tolerance(StrictlyRead):
    """An output passes where ``|a - b| <= atol * max|b| + rtol * |b| + floor``.

    ``outputs`` overrides ``dtypes`` by name; the name of a block is ``d OUTPUT / d INPUT``.
    """

    dtypes: dict[str, Bounds]
    outputs: dict[str, Bounds] = field(default_factory=dict)

    def bounds(self, output: str | tuple[str, str], dtype: str) -> Bounds:
        """Return the bounds of an output; a block without bounds has the output's.

        Integers and booleans are exact, but for a count of iterations: what a status says is never near another one."""
        if not isinstance(output, str):
            return self.outputs.get(block_name(*output)) or self.bounds(output[0], dtype)
        if not dtype.startswith(("float", "bfloat", "complex")) and output != COUNT:
            return Bounds(0.0, 0.0)
        return self.outputs.get(output) or self.dtypes.get(dtype) or Bounds(0.0, 0.0)


# What a new contract is given. A contract that is read has its own: what is right in a file changes with no version.
DEFAULT_TOLERANCE = Tolerance(
    {
        "float64": Bounds(1e-10, 1e-12),
        "float32": Bounds(1e-5, 1e-6),
        "float16": Bounds(1e-2, 1e-3),
        "bfloat16": Bounds(5e-2, 1e-2),
        "complex128": Bounds(1e-10, 1e-12),
        "complex64": Bounds(1e-5, 1e-6),
    }
)


@dataclass(frozen=True)
class Finding(StrictlyRead):
    """The result of one check.

    Attributes:
        check: The check's name.
        what: What was found.
        where: File and line of the user's source.
        reason: Why it is sound, why the user allowed it, or why the check could not run.
        severity: ``unsound`` keeps the model from being exported; ``sound`` passed for the ``reason``; ``allowed`` is
            unsound and was allowed by the user; ``not run`` is a check that could not run.
        evidence: What was observed there.
        mend: What to do.
    """

    check: str
    what: str
    where: str = ""
    reason: str = ""
    severity: Literal["unsound", "sound", "allowed", "not run"] = "sound"
    evidence: str = ""
    mend: str = ""


@dataclass(frozen=True)
class Range(StrictlyRead):
    """A closed interval: both ends are included."""

    low: float
    high: float


@dataclass(frozen=True)
class Envelope(StrictlyRead):
    """The checked range: finite values of each real input over all cases and fresh inputs, by name; the dtypes.

    Batch sizes and numbers of batch dimensions are in ``Batch``, devices in ``Contract.devices``."""

    values: dict[str, Range] = field(default_factory=dict)
    dtypes: tuple[str, ...] = ()


@dataclass(frozen=True)
class CreatedWith(StrictlyRead):
    """Versions of the software that wrote the archive, and the command that it was given."""

    torchferry: str
    torch: str
    python: str
    command: str = ""


@dataclass(frozen=True)
class Contract(StrictlyRead):
    """The contract of an archive, stored as ``contract.json``; the reference page of the schema names every field.

    Attributes:
        name: The model's name.
        inputs: Specs of the inputs of ``forward``, in its order.
        outputs: Specs of its outputs.
        batch: The number of batch dimensions, and the sizes that were checked.
        methods: Inputs and outputs of each method by name.
        parameters: The parameters that can be set.
        tolerance: The tolerances of each output.
        envelope: The range of values of each input that was checked.
        findings: What the soundness gate noted.
        graph: The hash of the canonical text of the graphs.
        metadata: What people say of the model.
        arguments: The structure of the arguments of the model's own call, a dict by their names, where some argument is
            not just a variable.
        positional: How many of these arguments may be given by their position.
        results: The structure of what that call returns, where it is neither one variable nor the tuple of them.
    """

    schema: int
    name: str
    source: Origin
    created_with: CreatedWith
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    batch: Batch
    methods: dict[str, MethodSpec]
    parameters: tuple[ParameterSpec, ...]
    tolerance: Tolerance
    devices: tuple[str, ...]
    operators: tuple[str, ...]
    findings: tuple[Finding, ...]
    envelope: Envelope
    # torch's autograd works through ``forward``, and was compared with eager mode's.
    differentiable: bool = False
    # Implicit models: their solves, and the outputs of ``newton_info``, of shape () or one number for each solve.
    solvers: tuple[Solver, ...] = ()
    info: tuple[TensorSpec, ...] = ()
    # Inputs that are parameters of the model, of which each element has its own value.
    per_element: tuple[str, ...] = ()
    # sha256 of the canonical text of the graphs (``exporter.graph.canonical_text``): identifies what the file computes.
    graph: str = ""
    metadata: Metadata = field(default_factory=Metadata)
    arguments: Structure = ()
    positional: int = 0
    results: Structure = ()

    def __post_init__(self) -> None:
        check_name(self.name, "the model")
        if self.graph and not re.fullmatch("[0-9a-f]{64}", self.graph):
            raise UsageError("the hash of the graphs is no sha256", got=repr(self.graph), expected="64 digits")
        for role, specs in (
            ("input", self.inputs),
            ("output", (*self.outputs, *self.info)),
            ("parameter", self.parameters),
        ):
            counts = Counter(spec.name for spec in specs)
            repeated = sorted(name for name, count in counts.items() if count > 1)
            if repeated:
                got, mend = ", ".join(map(repr, repeated)), "rename one of them, for example with --rename"
                raise UsageError(f"two {role}s have the same name", got=got, mend=mend)
        for parameter in self.parameters:
            check_name(parameter.name, "a parameter")
            check_dtype(parameter.name, parameter.dtype)
            check_label(parameter.quantity, f"the quantity of {parameter.name!r}")
            check_label(parameter.description, f"the description of {parameter.name!r}")
        for spec in (*self.inputs, *self.outputs, *self.info, *self.parameters):
            check_unit(spec.unit, spec.name)
        for bounds in (*self.tolerance.dtypes.values(), *self.tolerance.outputs.values()):
            bounds.check_range()
        # Applies the same rules to open sizes.
        Signature(self.inputs, (*self.outputs, *self.info), self.batch.ndim)
        check_structure(self.arguments, [spec.name for spec in self.inputs])
        if self.arguments and self.arguments[0].kind != "dict":
            raise UsageError("the arguments of a call are no dict", got=self.arguments[0].kind, expected="dict")
        most = len(self.arguments[0].keys) if self.arguments else 0
        if not 0 <= self.positional <= most:
            what, got = "more arguments of a call go by position than there are", str(self.positional)
            raise UsageError(what, got=got, expected=f"0 to {most}")
        check_structure(self.results, [spec.name for spec in self.outputs])
        if not self.methods:
            raise UsageError("a contract has no methods", expected="at least forward")
        if unknown := [name for name in self.per_element if name not in {spec.name for spec in self.inputs}]:
            what, expected = (
                "a parameter by element is no input",
                suggest_names(unknown[0], [s.name for s in self.inputs]),
            )
            raise UsageError(what, got=repr(unknown[0]), expected=expected)
        ins, outs = {spec.name for spec in self.inputs}, {spec.name for spec in (*self.outputs, *self.info)}
        wrt_names = ins | {spec.name for spec in self.parameters}
        for method, spec in self.methods.items():
            if not is_identifier(method):
                what, expected = "the name of a method is no identifier of ASCII", "letters, digits and _"
                raise UsageError(what, got=repr(method), expected=expected)
            unknown = [n for n in spec.inputs if strip_prefix(n) not in (outs if n.startswith(COTANGENT) else ins)]
            for output in spec.outputs:
                name, wrt = (output, None) if isinstance(output, str) else output
                unknown += [] if strip_prefix(name) in (ins if name.startswith(COTANGENT) else outs) else [name]
                unknown += [] if wrt is None or wrt in wrt_names else [wrt]
            unknown += [output for output, _ in spec.zeros if output not in outs]
            unknown += [wrt for _, wrt in spec.zeros if wrt not in wrt_names]
            blocks = set(spec.outputs)
            unknown += [pair[0] for pair in spec.symmetric if pair not in blocks]
            if unknown:
                what = f"method {method!r} refers to variables that are not in the contract"
                expected = suggest_names(unknown[0], [*ins, *outs])
                raise UsageError(what, got=", ".join(map(repr, unknown)), expected=expected)

    def check_call(self, method: str, names: Collection[str], owner: str) -> MethodSpec:
        """Return the spec of a method that takes inputs of just these names. Raise ``UsageError`` if it does not."""
        if method not in self.methods:
            raise UsageError(f"the {owner} has no method {method!r}", expected=suggest_names(method, self.methods))
        spec = self.methods[method]
        if set(spec.inputs) != set(names):
            got, expected = (", ".join(map(repr, group)) for group in (names, spec.inputs))
            raise UsageError(f"method {method!r} does not take these inputs", got=got, expected=expected)
        return spec

    @property
    def solver_settings(self) -> frozenset[str]:
        """Return the names of the solvers' settings, which are set like parameters."""
        return frozenset(f"{solver.path}.{name}" for solver in self.solvers for name in solver.settings)

    def input_spec(self, name: str) -> TensorSpec:
        """Return the spec of a method's input: an input, its tangent, or the cotangent of an output."""
        return self._find_spec("outputs" if name.startswith(COTANGENT) else "inputs", name)

    def output_spec(self, output: str | tuple[str, str]) -> TensorSpec:
        """Return the spec of a method's output: an output, its tangent, the cotangent of an input, or a Jacobian
        block, which has the output's shape followed by the input's or parameter's, and the quotient of their units."""
        if not isinstance(output, str):
            spec = self.output_spec(output[0])
            wrt = self._specs["inputs"].get(output[1]) or self._specs["parameters"][output[1]]
            shape, unit = (*spec.shape, *wrt.shape), divide_units(spec.unit, wrt.unit)
            return dataclasses.replace(spec, shape=shape, unit=unit, quantity="", description="")
        return self._find_spec("inputs" if output.startswith(COTANGENT) else "outputs", output)

    def _find_spec(self, role: str, name: str) -> TensorSpec:
        """Return the spec of a variable, a tangent or a cotangent. The units of these two are the caller's."""
        spec: TensorSpec = self._specs[role][strip_prefix(name)]
        is_plain = spec.name == name or not (spec.unit or spec.note)
        return spec if is_plain else dataclasses.replace(spec, unit="", quantity="", description="")

    @functools.cached_property
    def _specs(self) -> dict[str, dict[str, Any]]:
        """Return the specs of each role by name."""
        roles = {"inputs": self.inputs, "outputs": (*self.outputs, *self.info), "parameters": self.parameters}
        return {role: {spec.name: spec for spec in specs} for role, specs in roles.items()}

    def to_json(self) -> str:
        """Return the contract as JSON. Without units and metadata it is what readers take that know none."""
        fields = dataclasses.asdict(self, dict_factory=_drop_unsaid)
        return json.dumps(fields, indent=1, ensure_ascii=False, allow_nan=False)


# What may be left unsaid of a model and its variables.
_SAID = (
    *TEXT_FIELDS,
    *(f.name for f in dataclasses.fields(Metadata)),
    "metadata",
    "arguments",
    "positional",
    "results",
)


def _drop_unsaid(fields: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    return {key: value for key, value in fields if value or key not in _SAID}


_ADAPTER = TypeAdapter(Contract)


def contract_from_json(text: str | bytes, where: str) -> Contract:
    """Parse a contract; raise ``SchemaError`` for another schema, ``ArchiveError`` if it is invalid."""
    try:
        raw = parse_strictly(text)
    except ValueError as error:
        raise ArchiveError("the contract is not JSON", where=where, got=str(error)) from None
    schema = raw.get("schema") if isinstance(raw, dict) else None
    if isinstance(schema, int) and schema != SCHEMA:
        writer = raw.get("created_with") or {}
        version = writer.get("torchferry", "unknown") if isinstance(writer, dict) else "unknown"
        what = f"the archive has schema {schema}"
        got = f"schema {schema}, written by torchferry {version}"
        mend = f"read it with torchferry {version} or newer, or export the model again with this version"
        raise SchemaError(what, where=where, got=got, expected=f"schema {SCHEMA}", mend=mend)
    check_limits(raw, "the contract is broken", where)
    try:
        return _ADAPTER.validate_json(text)
    except ValidationError as error:
        got, expected = describe_invalid(error), f"a contract of schema {SCHEMA}"
        raise ArchiveError(
            "the contract is broken", where=where, got=got, expected=expected, mend="export the model again"
        ) from None
    except UsageError as error:
        raise ArchiveError(
            f"the contract is broken: {error.what}",
            where=where,
            got=error.details.get("got", ""),
            expected=error.details.get("expected", ""),
            mend="export the model again",
        ) from None

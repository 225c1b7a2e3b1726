"""What an archive promises: names, shapes, dtypes, methods, tolerances. Knows no files and no torch.

Schema 1. The text form is JSON; reading it is strict, so that a contract that was edited by hand or damaged
is refused with the path of the field at fault.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError

from exporter.errors import ArchiveError, SchemaError, UsageError

SCHEMA = 1
STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
FLOATING = ("float64", "float32", "float16", "bfloat16")
# The sizes of a tensor: numbers, and names of sizes that every call decides anew.
Shape = tuple[int | str, ...]
DTYPES = (*FLOATING, "int64", "int32", "int16", "int8", "uint8", "bool", "complex64", "complex128")


@dataclass(frozen=True)
class Sampling:
    """How inputs of one variable are drawn.

    ``recorded``: a row that warmup saw, times ``1 + spread * u``, plus ``spread * scale * u``, with ``u`` uniform
    in [-1, 1) and ``scale`` the largest magnitude that was seen; rows of all variables are picked together.
    ``uniform``: in [low, high). ``fixed``: the recorded rows as they are (integers, booleans, ``spread`` 0).
    """

    kind: Literal["recorded", "uniform", "fixed"] = "uniform"
    low: float = -1.0
    high: float = 1.0
    spread: float = 0.0
    __pydantic_config__ = STRICT


@dataclass(frozen=True)
class TensorSpec:
    """One variable. ``shape`` is its own shape, without the batch dimensions that come before it.

    A size with a name is open: it may be another one in every call, and is one for all variables that have the name.
    """

    name: str
    shape: Shape = ()
    dtype: str = "float64"
    type: str = "Tensor"
    sampling: Sampling = field(default_factory=Sampling)
    __pydantic_config__ = STRICT

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise UsageError(
                f"variable {self.name!r} has an unknown dtype",
                got=repr(self.dtype),
                expected=f"one of {', '.join(DTYPES)}",
            )
        unfit = [d for d in self.shape if isinstance(d, str) and not d.isidentifier()]
        if unfit:
            raise UsageError(
                f"variable {self.name!r} has a size whose name is no name",
                got=repr(unfit[0]),
                expected="a whole number, or an identifier for a size that is open: 'n'",
            )

    @property
    def fixed(self) -> tuple[int, ...]:
        """The shape where every size is a number. Raises ``UsageError`` where one is open."""
        if any(isinstance(d, str) for d in self.shape):
            raise UsageError(f"variable {self.name!r} has open sizes", got=str(list(self.shape)), expected="numbers")
        return tuple(d for d in self.shape if isinstance(d, int))

    def sized(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """The shape with numbers for its open sizes."""
        return tuple(d if isinstance(d, int) else sizes[d] for d in self.shape)

    def describe(self) -> str:
        return f"{self.name}: {self.type}{list(self.shape)} {self.dtype}"


def open_sizes(specs: Sequence[TensorSpec]) -> tuple[str, ...]:
    """Names of the sizes that are not numbers, in the order in which they first come."""
    return tuple(dict.fromkeys(d for spec in specs for d in spec.shape if isinstance(d, str)))


def fits_shape(got: Sequence[int], shape: Shape, known: dict[str, int]) -> bool:
    """Whether ``got`` is this shape; open sizes must be those in ``known``, which learns them."""
    return len(got) == len(shape) and all(
        known.setdefault(wanted, size) == size if isinstance(wanted, str) else wanted == size
        for size, wanted in zip(got, shape, strict=True)
    )


@dataclass(frozen=True)
class Signature:
    """The variables of a torch module, declared by its author as ``module.signature``.

    ``batch_ndim`` is 1 where every tensor has a leading batch dimension over independent elements, 0 where the
    shapes are whole: fixed, but for sizes with names. An output's open sizes are sizes of inputs.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...] = ()
    batch_ndim: int = 1

    def __post_init__(self) -> None:
        known, used = open_sizes(self.inputs), open_sizes(self.outputs)
        if (known or used) and self.batch_ndim:
            raise UsageError(
                "a signature has open sizes and a batch",
                got=f"sizes {', '.join((*known, *used))}, batch_ndim={self.batch_ndim}",
                expected="batch_ndim=0: the shapes are then whole, and open sizes stand for what changes",
            )
        if not set(used) <= set(known):
            raise UsageError(
                "an output has an open size that no input has",
                got=", ".join(sorted(set(used) - set(known))),
                expected="a number" + (f", or one of {', '.join(known)}" if known else ""),
            )

    @classmethod
    def of(
        cls,
        inputs: Mapping[str, Sequence[int | str] | TensorSpec],
        outputs: Mapping[str, Sequence[int | str] | TensorSpec] | None = None,
        *,
        dtype: str = "float64",
        batch_ndim: int | None = None,
    ) -> Signature:
        """``Signature.of({"strain": (6,)}, {"stress": (6,)})``: own shapes by name, one dtype for all.

        ``Signature.of({"x": ("n", 3)}, {"loss": ()})`` has an open size and, as it must then, no batch.
        """

        def specs(by_name: Mapping[str, Sequence[int | str] | TensorSpec]) -> tuple[TensorSpec, ...]:
            return tuple(
                dataclasses.replace(shape, name=name)
                if isinstance(shape, TensorSpec)
                else TensorSpec(name, tuple(shape), dtype)
                for name, shape in by_name.items()
            )

        ins, outs = specs(inputs), specs(outputs or {})
        if batch_ndim is None:
            batch_ndim = 0 if open_sizes((*ins, *outs)) else 1
        return cls(ins, outs, batch_ndim)


@dataclass(frozen=True)
class Origin:
    """Where the model came from; ``sha256`` is of the input file."""

    kind: str
    library: str
    version: str
    model: str
    sha256: str
    refused_imports: tuple[str, ...] = ()
    __pydantic_config__ = STRICT


@dataclass(frozen=True)
class Batch:
    """``ndim`` 1: independent elements, any number of leading dimensions; 0: whole shapes, fixed but for open sizes.

    ``sizes`` (of the batch, or of the first open size) and ``ranks`` are those that verification ran; ``limits`` says
    what eager mode itself refused.
    """

    ndim: int
    sizes: tuple[int, ...] = ()
    ranks: tuple[int, ...] = ()
    limits: str = ""
    __pydantic_config__ = STRICT


# Before the name of a variable: what ``jvp`` pushes forward, and what ``vjp`` pulls back.
TANGENT, COTANGENT = "tangent:", "cotangent:"


@dataclass(frozen=True)
class MethodSpec:
    """Names of what a method takes and returns, in call order.

    A Jacobian block is ``(output, input)`` or ``(output, parameter)``; ``tangent:a`` and ``cotangent:a`` have the shape
    of ``a``. ``how`` says how derivatives are computed, ``zeros`` which blocks are left out because the output does not
    depend on the input or parameter, ``symmetric`` which are second derivatives of a potential.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str | tuple[str, str], ...]
    needs_grad: bool = False
    how: str = ""
    zeros: tuple[tuple[str, str], ...] = ()
    symmetric: tuple[tuple[str, str], ...] = ()
    __pydantic_config__ = STRICT


def bare(name: str) -> str:
    """The variable that a tangent or cotangent belongs to."""
    return name.removeprefix(TANGENT).removeprefix(COTANGENT)


@dataclass(frozen=True)
class ParameterSpec:
    """A tensor that can be changed in place after loading; ``name`` is its attribute path in the file."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    __pydantic_config__ = STRICT


@dataclass(frozen=True)
class Bounds:
    rtol: float
    atol: float
    __pydantic_config__ = STRICT


@dataclass(frozen=True)
class Tolerance:
    """An output passes where ``|a - b| <= atol * max|b| + rtol * |b|``.

    ``outputs`` overrides ``dtypes`` by name.
    """

    dtypes: dict[str, Bounds] = field(
        default_factory=lambda: {
            "float64": Bounds(1e-10, 1e-12),
            "float32": Bounds(1e-5, 1e-6),
            "float16": Bounds(1e-2, 1e-3),
            "bfloat16": Bounds(5e-2, 1e-2),
            "complex128": Bounds(1e-10, 1e-12),
            "complex64": Bounds(1e-5, 1e-6),
        }
    )
    outputs: dict[str, Bounds] = field(default_factory=dict)
    __pydantic_config__ = STRICT

    def bounds(self, output: str, dtype: str) -> Bounds:
        """Exact for dtypes without a tolerance: integers and booleans."""
        return self.outputs.get(output) or self.dtypes.get(dtype) or Bounds(0.0, 0.0)


@dataclass(frozen=True)
class Finding:
    """Something that a check saw.

    ``severity``: ``unsound`` keeps the model from being exported; ``sound`` was let pass for this ``reason``;
    ``allowed`` is unsound and was let pass by the user, with the user's reason; ``not run`` is a check that could not
    run. ``where`` is file and line of the user's source; ``evidence`` what was seen there; ``mend`` what to do.
    """

    check: str
    what: str
    where: str = ""
    reason: str = ""
    severity: Literal["unsound", "sound", "allowed", "not run"] = "sound"
    evidence: str = ""
    mend: str = ""
    __pydantic_config__ = STRICT


@dataclass(frozen=True)
class Range:
    """Both ends included."""

    low: float
    high: float
    __pydantic_config__ = STRICT


@dataclass(frozen=True)
class Envelope:
    """What was checked: the finite values of each real input over all cases and fresh inputs, by name; the dtypes.

    Batch sizes and numbers of batch dimensions are in ``Batch``, devices in ``Contract.devices``.
    """

    values: dict[str, Range] = field(default_factory=dict)
    dtypes: tuple[str, ...] = ()
    __pydantic_config__ = STRICT


@dataclass(frozen=True)
class CreatedWith:
    torchferry: str
    torch: str
    python: str
    __pydantic_config__ = STRICT


@dataclass(frozen=True)
class Contract:
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
    # torch's autograd works through ``forward``, and was held against eager mode's.
    differentiable: bool = False
    __pydantic_config__ = STRICT

    def __post_init__(self) -> None:
        for kind, specs in (("input", self.inputs), ("output", self.outputs)):
            names = [spec.name for spec in specs]
            repeated = sorted({name for name in names if names.count(name) > 1})
            if repeated:
                raise UsageError(f"two {kind}s have one name", got=", ".join(map(repr, repeated)))
        # Holds open sizes to the same rules.
        Signature(self.inputs, self.outputs, self.batch.ndim)
        ins, outs = {spec.name for spec in self.inputs}, {spec.name for spec in self.outputs}
        bys = ins | {spec.name for spec in self.parameters}
        for method, spec in self.methods.items():
            unknown = [n for n in spec.inputs if bare(n) not in (outs if n.startswith(COTANGENT) else ins)]
            for output in spec.outputs:
                of, by = (output, None) if isinstance(output, str) else output
                unknown += [] if bare(of) in (ins if of.startswith(COTANGENT) else outs) else [of]
                unknown += [] if by is None or by in bys else [by]
            unknown += [of for of, _ in spec.zeros if of not in outs] + [by for _, by in spec.zeros if by not in bys]
            unknown += [of for of, by in spec.symmetric if (of, by) not in spec.outputs]
            if unknown:
                raise UsageError(
                    f"method {method!r} speaks of variables that the contract does not have",
                    got=", ".join(map(repr, unknown)),
                )

    def taken(self, name: str) -> TensorSpec:
        """What a method takes by this name: an input, its tangent, or the cotangent of an output."""
        specs = self.outputs if name.startswith(COTANGENT) else self.inputs
        return next(s for s in specs if s.name == bare(name))

    def returned(self, output: str | tuple[str, str]) -> TensorSpec:
        """What a method returns: an output, its tangent, the cotangent of an input, or a block, which has the output's
        shape and then the input's or parameter's."""
        if not isinstance(output, str):
            of, by = self.returned(output[0]), (*self.inputs, *self.parameters)
            return dataclasses.replace(of, shape=(*of.shape, *next(s.shape for s in by if s.name == output[1])))
        specs = self.inputs if output.startswith(COTANGENT) else self.outputs
        return next(s for s in specs if s.name == bare(output))

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=1, ensure_ascii=False, allow_nan=False)


_ADAPTER = TypeAdapter(Contract)


def contract_from_json(text: str | bytes, where: str) -> Contract:
    """Raises ``SchemaError`` for another schema, ``ArchiveError`` for anything that is not a contract."""
    try:
        raw: Any = json.loads(text)
    except ValueError as error:
        raise ArchiveError("the contract is not JSON", where=where, got=str(error)) from None
    schema = raw.get("schema") if isinstance(raw, dict) else None
    if isinstance(schema, int) and schema != SCHEMA:
        writer = raw.get("created_with") or {}
        version = writer.get("torchferry", "unknown") if isinstance(writer, dict) else "unknown"
        raise SchemaError(
            f"the archive is of schema {schema}",
            where=where,
            got=f"schema {schema}, written by torchferry {version}",
            expected=f"schema {SCHEMA}",
            mend=f"read it with torchferry {version} or newer, or export the model again with this version",
        )
    try:
        return _ADAPTER.validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        path = ".".join(str(part) for part in first["loc"]) or "the whole text"
        raise ArchiveError(
            "the contract is broken",
            where=f"{where}, field {path}",
            got=f"{first['msg']} ({str(first.get('input'))[:80]})",
            expected=f"a contract of schema {SCHEMA}",
            mend="export the model again",
        ) from None
    except UsageError as error:
        raise ArchiveError(
            f"the contract is broken: {error.what}",
            where=where,
            got=error.details.get("got", ""),
            expected=error.details.get("expected", ""),
            mend="export the model again",
        ) from None

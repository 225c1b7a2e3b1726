"""Variables of a model: names, shapes, dtypes, how values are drawn. Uses no files and no torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from exporter.archive.contract_text import StrictlyRead, check_label, check_name, is_identifier
from exporter.archive.metadata import Metadata, VariableTexts
from exporter.common.errors import UsageError

FLOATING = ("float64", "float32", "float16", "bfloat16")
# The sizes of a tensor: numbers, and names of open sizes, which may differ in every call.
Shape = tuple[int | str, ...]
DTYPES = (*FLOATING, "int64", "int32", "int16", "int8", "uint8", "bool", "complex64", "complex128")


@dataclass(frozen=True)
class Sampling(StrictlyRead):
    """The way in which inputs of one variable are drawn for checks and cases.

    Attributes:
        kind: ``recorded``: a row of warmup, times ``1 + spread * u``, plus ``spread * scale * u``, with ``u`` uniform
            in [-1, 1) and ``scale`` the largest recorded magnitude; rows of all variables are picked together.
            ``blended``: a row of warmup, moved towards another one by up to a quarter of the way, which keeps what
            holds on the line between them (time goes on, a state is admissible). ``uniform``: in [low, high).
            ``fixed``: the recorded rows as they are (integers, booleans, ``spread`` 0).
        low: The lower bound of ``uniform``.
        high: The upper bound of ``uniform``, not reached.
        spread: The relative width of ``recorded``.

    Example:
        ```python
        TensorSpec("temperature", (), sampling=Sampling("uniform", 250.0, 350.0))
        ```
    """

    kind: Literal["recorded", "blended", "uniform", "fixed"] = "uniform"
    low: float = -1.0
    high: float = 1.0
    spread: float = 0.0


@dataclass(frozen=True)
class TensorSpec(StrictlyRead, VariableTexts):
    """One variable of a model.

    Attributes:
        name: The variable's name.
        shape: Its own shape, without the batch dimensions that come before it. A size with a name is open: it may
            differ in every call, and is the same for all variables that use the name.
        dtype: The dtype's name in torch.
        type: The type's name in the source library; ``Tensor`` for plain tensors.
        sampling: The way in which values are drawn.
        unit: The unit of its numbers, such as ``MPa``; ``1`` for what has no dimension, and empty where nobody has
            said it.
        quantity: What kind of quantity its numbers are, such as ``Cauchy stress``.
        description: What it is, in one line.

    Raises:
        UsageError: The dtype is unknown, the name of an open size is not an identifier, or a text does not show as it
            is.

    Example:
        ```python
        TensorSpec("positions", ("n", 3), "float32", unit="angstrom")
        ```
    """

    name: str
    shape: Shape = ()
    dtype: str = "float64"
    type: str = "Tensor"
    sampling: Sampling = field(default_factory=Sampling)
    unit: str = ""
    quantity: str = ""
    description: str = ""

    def __post_init__(self) -> None:
        check_dtype(self.name, self.dtype)
        if self.unit:
            check_name(self.unit, f"the unit of {self.name!r}")
        check_label(self.quantity, f"the quantity of {self.name!r}")
        check_label(self.description, f"the description of {self.name!r}")
        unfit = [d for d in self.shape if isinstance(d, str) and not is_identifier(d)]
        if unfit:
            what = f"variable {self.name!r} has a size whose name is not an identifier"
            raise UsageError(what, got=repr(unfit[0]), expected="an integer, or an identifier for an open size: 'n'")

    @property
    def static_shape(self) -> tuple[int, ...]:
        """Return the shape if every size is a number. Raises ``UsageError`` if one is open."""
        if any(isinstance(d, str) for d in self.shape):
            raise UsageError(f"variable {self.name!r} has open sizes", got=str(list(self.shape)), expected="numbers")
        return tuple(d for d in self.shape if isinstance(d, int))

    def resolve_shape(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """Return the shape with numbers for its open sizes."""
        return tuple(d if isinstance(d, int) else sizes[d] for d in self.shape)

    def describe(self) -> str:
        """Return name, type, shape, dtype and unit as text."""
        return f"{self.name}: {self.type}{list(self.shape)} {self.dtype}" + (f", {self.unit}" if self.unit else "")


def check_dtype(name: str, dtype: str) -> None:
    """Raise ``UsageError`` for a dtype that no variable has."""
    if dtype not in DTYPES:
        what = f"variable {name!r} has an unknown dtype"
        raise UsageError(what, got=repr(dtype), expected=f"one of {', '.join(DTYPES)}")


def name_dtype(value: Any) -> str:
    """Return the name of a dtype, or of a tensor's or an array's, as contracts write it: ``float64``."""
    return str(getattr(value, "dtype", value)).removeprefix("torch.")


def infer_spec(name: str, value: Any, batch_ndim: int = 0) -> TensorSpec:
    """Return the spec of a tensor without its first ``batch_ndim`` dimensions."""
    return TensorSpec(name, tuple(value.shape[batch_ndim:]), name_dtype(value))


def list_dynamic_sizes(specs: Sequence[TensorSpec]) -> tuple[str, ...]:
    """List the names of the sizes that are not numbers, in order of first appearance."""
    return tuple(dict.fromkeys(d for spec in specs for d in spec.shape if isinstance(d, str)))


def fits_shape(got: Sequence[int], shape: Shape, known_sizes: dict[str, int]) -> bool:
    """Return whether ``got`` fits this shape; open sizes must equal ``known_sizes``, to which new ones are added."""
    pairs = list(zip(got, shape, strict=False))
    fits = (known_sizes.setdefault(d, size) == size if isinstance(d, str) else d == size for size, d in pairs)
    return len(got) == len(shape) and all(fits)


@dataclass(frozen=True)
class Signature:
    """The variables of a torch module, declared by its author as ``module.signature``.

    Attributes:
        inputs: The variables that ``forward`` takes, in its order.
        outputs: The variables that it returns; none if a run is to say them.
        batch_ndim: 1 if every tensor has a leading batch dimension over independent elements, 0 if the shapes are full:
            fixed, except for sizes with names. An output's open sizes are sizes of inputs.
        metadata: What is said of the module: description, authors, license, references.

    Raises:
        UsageError: A name is empty or has control characters, there are both open sizes and a batch, or an output has
            an open size that no input has.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...] = ()
    batch_ndim: int = 1
    metadata: Metadata = field(default_factory=Metadata)

    def __post_init__(self) -> None:
        for spec in (*self.inputs, *self.outputs):
            check_name(spec.name, "a variable")
        input_sizes, output_sizes = list_dynamic_sizes(self.inputs), list_dynamic_sizes(self.outputs)
        if (input_sizes or output_sizes) and self.batch_ndim:
            got = f"sizes {', '.join((*input_sizes, *output_sizes))}, batch_ndim={self.batch_ndim}"
            expected = "batch_ndim=0: shapes are then full, and open sizes mark the dimensions that vary"
            raise UsageError("a signature has both open sizes and a batch", got=got, expected=expected)
        if not set(output_sizes) <= set(input_sizes):
            got = ", ".join(sorted(set(output_sizes) - set(input_sizes)))
            expected = "a number" + (f", or one of {', '.join(input_sizes)}" if input_sizes else "")
            raise UsageError("an output has an open size that no input has", got=got, expected=expected)

    @classmethod
    def of(
        cls,
        inputs: Mapping[str, Sequence[int | str] | TensorSpec],
        outputs: Mapping[str, Sequence[int | str] | TensorSpec] | None = None,
        *,
        dtype: str = "float64",
        batch_ndim: int | None = None,
        metadata: Metadata | None = None,
    ) -> Signature:
        """Build a signature from shapes of one element by name.

        Args:
            inputs: Shapes, or specs, by name in the order of ``forward``.
            outputs: Shapes, or specs, by name.
            dtype: The dtype of variables that are given by their shape.
            batch_ndim: By default 1, and 0 where a size is open.
            metadata: What is said of the module.

        Returns:
            The signature.

        Example:
            ```python
            Signature.of({"strain": (6,)}, {"stress": (6,)})
            Signature.of({"x": ("n", 3)}, {"loss": ()})  # an open size, and no batch
            ```
        """

        def make_specs(by_name: Mapping[str, Sequence[int | str] | TensorSpec]) -> tuple[TensorSpec, ...]:
            specs = {n: v if isinstance(v, TensorSpec) else TensorSpec(n, tuple(v), dtype) for n, v in by_name.items()}
            return tuple(dataclasses.replace(spec, name=name) for name, spec in specs.items())

        input_specs, output_specs = make_specs(inputs), make_specs(outputs or {})
        if batch_ndim is None:
            batch_ndim = 0 if list_dynamic_sizes((*input_specs, *output_specs)) else 1
        return cls(input_specs, output_specs, batch_ndim, metadata or Metadata())

"""Variables of a model: names, shapes, dtypes, how values are drawn. Knows no files and no torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from pydantic import ConfigDict

from exporter.common.errors import UsageError

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
    ``blended``: a row that warmup saw, moved towards another one by up to a quarter of the way, which keeps what holds
    on the line between them (time goes on, a state is admissible). ``uniform``: in [low, high). ``fixed``: the recorded
    rows as they are (integers, booleans, ``spread`` 0).
    """

    kind: Literal["recorded", "blended", "uniform", "fixed"] = "uniform"
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

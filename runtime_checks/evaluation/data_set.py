"""A data set: variables by name, read slice by slice when they are needed. It may be larger than any memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from exporter.common.errors import UsageError, summarize_error

if TYPE_CHECKING:
    import numpy

NETCDF, PARQUET, ZARR = (".nc", ".nc4", ".netcdf", ".h5"), (".parquet", ".pq"), (".zarr",)
SUFFIXES = (*ZARR, *NETCDF, *PARQUET)
# What of torchferry brings the packages that read and write them.
EXTRA = "data"
# The attribute that has the unit, by the CF conventions.
UNITS = "units"
# Of whole numbers in float64: beyond it some are rounded.
MAX_EXACT = 2**53


@dataclass(frozen=True)
class Variable:
    """A variable of a data set: ``dtype`` as NumPy names it, ``attributes`` that are texts, such as units,
    ``stored`` the sizes of its chunks by dimension, ``other_units`` those that parts of it have, or that are no
    text."""

    name: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    attributes: tuple[tuple[str, str], ...] = ()
    stored: Mapping[str, int] = field(default_factory=dict)
    other_units: tuple[str, ...] = ()

    @property
    def unit(self) -> str:
        """Return the unit that its attributes say, as the CF conventions have it; empty if they say none."""
        return next((text.strip() for key, text in self.attributes if key == UNITS), "")

    def list_units(self) -> tuple[str, ...]:
        """List its units: that of its attributes, and those of its parts."""
        return tuple(dict.fromkeys(unit for unit in (self.unit, *self.other_units) if unit))

    @property
    def sizes(self) -> dict[str, int]:
        """Return the size of each dimension."""
        return dict(zip(self.dims, self.shape, strict=True))

    def describe(self) -> str:
        """Return name, dimensions and dtype as text."""
        sizes = ", ".join(f"{dim}: {size}" for dim, size in self.sizes.items())
        return f"{self.name} ({sizes}) {self.dtype}"


class DataSet(Protocol):
    """Variables by name, read slice by slice."""

    where: str

    def list_names(self) -> list[str]: ...

    def list_coordinates(self) -> list[str]: ...

    def find_variable(self, name: str, event_shape: Sequence[int | str] = ()) -> Variable | None: ...

    def close(self) -> None: ...

    def read(self, variable: Variable, slices: tuple[slice, ...]) -> numpy.ndarray: ...


def make_read_error(where: str, name: str, error: Exception) -> UsageError:
    """Return the error for numbers that cannot be read."""
    what, mend = f"variable {name!r} cannot be read", "copy the data set again"
    return UsageError(what, where=where, got=summarize_error(error), expected="stored numbers", mend=mend)


def check_whole_numbers(values: numpy.ndarray, name: str, dtype: str, where: str) -> None:
    """Raise ``UsageError`` for whole numbers that floats of ``dtype`` would round: NumPy calls that cast safe."""
    if values.dtype.kind not in "iu" or dtype.startswith(("int", "uint", "bool")):
        return
    largest = max(-int(values.min()), int(values.max())) if values.size else 0
    if largest > MAX_EXACT:
        what = f"variable {name!r} has whole numbers that {dtype} rounds"
        mend = f"store it as {dtype}, if that is meant"
        raise UsageError(what, where=where, got=str(largest), expected=f"at most {MAX_EXACT}", mend=mend)

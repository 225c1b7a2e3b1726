"""Zarr and NetCDF as data sets, through xarray."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exporter.common.errors import UsageError, summarize_error
from exporter.common.optional_packages import import_package
from runtime_checks.evaluation.data_set import EXTRA, UNITS, Variable, make_read_error

if TYPE_CHECKING:
    import numpy


class XarrayData:
    """The variables of an ``xarray.Dataset``."""

    def __init__(self, dataset: Any, where: str) -> None:
        self._dataset, self.where = dataset, where

    def list_names(self) -> list[str]:
        """List the names of all variables."""
        # A store of Zarr lists its arrays in another order each time.
        return sorted(str(name) for name in self._dataset.variables)

    def list_coordinates(self) -> list[str]:
        """List the variables that say where elements are."""
        names = {*self._dataset.coords, *self._dataset.sizes}
        return sorted(str(name) for name in self._dataset.variables if name in names)

    def find_variable(self, name: str, event_shape: Sequence[int | str] = ()) -> Variable | None:
        """Return a variable by name, if there is one."""
        if name not in self._dataset.variables:
            return None
        source = self._dataset.variables[name]
        # Zarr and HDF5 name it differently; one number, where dask cut the variable.
        chunks = source.encoding.get("chunks") or source.encoding.get("chunksizes") or ()
        if source.chunks:
            chunks = [max(sizes) for sizes in source.chunks]
        # What was selected from a dataset still says how the whole was stored.
        fits = len(chunks) == len(source.dims)
        stored = dict(zip(map(str, source.dims), map(int, chunks), strict=True)) if fits else {}
        attributes = tuple((str(key), text) for key, text in source.attrs.items() if isinstance(text, str))
        return Variable(
            name,
            tuple(map(str, source.dims)),
            tuple(source.shape),
            source.dtype.name,
            attributes,
            stored,
            _spell_other_unit(source.attrs.get(UNITS)),
        )

    def close(self) -> None:
        """Close the file."""
        self._dataset.close()

    def read(self, variable: Variable, slices: tuple[slice, ...]) -> numpy.ndarray:
        """Read a slice of a variable. Raises ``UsageError`` if it cannot be read."""
        try:
            return self._dataset.variables[variable.name][slices].to_numpy()
        except Exception as error:
            raise make_read_error(self.where, variable.name, error) from None


def _spell_other_unit(value: Any) -> tuple[str, ...]:
    """Return a unit that is no text as one: ``1``, the only text of an array, or what it is."""
    if value is None or isinstance(value, str):
        return ()
    items = value.ravel().tolist() if hasattr(value, "ravel") else [value]
    is_number = len(items) == 1 and isinstance(items[0], (int, float)) and not isinstance(items[0], bool)
    if is_number or (len(items) == 1 and isinstance(items[0], str)):
        return (f"{items[0]:g}" if is_number else items[0],)
    return (f"{type(value).__name__} {str(value)[:40]}",)


def open_by_xarray(path: Path, engine: str, **options: Any) -> XarrayData:
    """Open a file or a store. Raises ``UsageError`` if it cannot be read, ``MissingRuntimeError`` without a package."""
    xarray = import_package("xarray", str(path), EXTRA)
    import_package(engine, str(path), EXTRA)
    try:
        # Values are read when they are asked for: no index is made, and no time is decoded, of what is not an input.
        dataset = xarray.open_dataset(
            path,
            engine=engine,
            chunks=None,
            cache=False,
            decode_times=False,
            decode_timedelta=False,
            create_default_indexes=False,
            **options,
        )
    except Exception as error:
        what, mend = "the data set cannot be opened", "copy it again, or write it anew"
        raise UsageError(what, where=str(path), got=summarize_error(error), mend=mend) from None
    return XarrayData(dataset, str(path))

"""Results of an evaluation on disk, chunk by chunk: Zarr, NetCDF and Parquet.

Chunks are written by any number of processes at once, each into files of its own. A NetCDF file is written at the end,
from a store of Zarr; a Parquet file from a file for each chunk."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from exporter.common.atomic_files import atomic_write_path
from exporter.common.errors import UsageError
from exporter.common.optional_packages import import_package
from runtime_checks.component_names import list_components
from runtime_checks.evaluation.chunks import Chunk, Grid
from runtime_checks.evaluation.data_set import EXTRA, NETCDF, PARQUET, SUFFIXES, ZARR

if TYPE_CHECKING:
    import numpy

# Names of files that Zarr gives another name when they are whole.
PARTIAL = "*.partial"
Arrays = Mapping[str, "numpy.ndarray"]


@dataclass(frozen=True)
class StoredVariable:
    """A variable of the results: its dimensions, those of elements first, and their sizes."""

    name: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    attributes: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Layout:
    """What results consist of: elements in a ``grid``, the variables, and what is said of them all."""

    grid: Grid
    variables: tuple[StoredVariable, ...]
    attributes: tuple[tuple[str, str], ...] = ()


class ResultStore(Protocol):
    """Results that chunks are written to, in a ``folder``, until they go to the ``output``."""

    def create(self) -> None: ...

    def resume(self) -> None: ...

    def write(self, chunk: Chunk, arrays: Arrays) -> None: ...

    def read(self, chunk: Chunk) -> dict[str, numpy.ndarray]: ...

    def finish(self, output: Path, tell: Callable[[int], object]) -> None: ...


def make_store(suffix: str, folder: Path, layout: Layout) -> ResultStore:
    """Make the store for results of a suffix. Raises ``UsageError`` if there is none, or for a dtype it does not have,
    ``MissingRuntimeError`` if a package is missing."""
    if suffix not in SUFFIXES:
        what, expected = "the results have no format of this suffix", ", ".join(SUFFIXES)
        raise UsageError(what, where="--output", got=suffix or "none", expected=expected)
    complex_ones = [v.name for v in layout.variables if v.dtype.startswith("complex")]
    if complex_ones and suffix not in ZARR:
        what, mend = f"{suffix} files have no complex numbers", f"write to {ZARR[0]}"
        raise UsageError(what, where="--output", got=f"{complex_ones[0]!r}", expected="real numbers", mend=mend)
    if suffix in PARQUET:
        return ParquetResults(folder, layout)
    if suffix in NETCDF:
        return NetcdfResults(folder, layout)
    return ZarrResults(folder, layout)


class ZarrResults:
    """Results as a store of Zarr: each chunk is a chunk of each variable."""

    def __init__(self, folder: Path, layout: Layout) -> None:
        self._zarr = import_package("zarr", "--output", EXTRA)
        self._folder, self._layout = folder, layout
        self._group: Any = None

    def create(self) -> None:
        """Write the metadata of all variables."""
        group = self._zarr.create_group(self._folder, overwrite=True, attributes=dict(self._layout.attributes))
        steps = dict(zip(self._layout.grid.dims, self._layout.grid.chunk_sizes, strict=True))
        for variable in self._layout.variables:
            group.create_array(
                variable.name,
                shape=variable.shape,
                chunks=tuple(
                    max(steps.get(dim, size), 1) for dim, size in zip(variable.dims, variable.shape, strict=True)
                ),
                dtype=variable.dtype,
                # A byte of each number after the other: of numbers of one size the first ones are alike.
                compressors=self._zarr.codecs.BloscCodec(cname="lz4", clevel=1, shuffle="shuffle"),
                fill_value=math.nan if variable.dtype.startswith("float") else None,
                dimension_names=variable.dims,
                attributes=dict(variable.attributes),
            )

    def resume(self) -> None:
        """Remove what Zarr was writing when its process was killed."""
        for path in self._folder.rglob(PARTIAL):
            path.unlink(missing_ok=True)

    def write(self, chunk: Chunk, arrays: Arrays) -> None:
        """Write the variables of a chunk, ``arrays`` of its shape."""
        for variable in self._select_variables(chunk):
            self._open(variable.name)[chunk.select(variable.dims)] = arrays[variable.name]

    def read(self, chunk: Chunk) -> dict[str, numpy.ndarray]:
        """Read the variables of a chunk."""
        chosen = self._select_variables(chunk)
        return {v.name: self._open(v.name)[chunk.select(v.dims)] for v in chosen}

    def finish(self, output: Path, tell: Callable[[int], object]) -> None:
        """Let the store go to its place."""
        with warnings.catch_warnings():
            # That the one file for all metadata is not in the specification yet; xarray asks for it.
            warnings.simplefilter("ignore")
            self._zarr.consolidate_metadata(self._folder)
        self._folder.replace(output)

    def _select_variables(self, chunk: Chunk) -> list[StoredVariable]:
        return select_variables(self._layout, chunk)

    def _open(self, name: str) -> Any:
        """Return an array, opened once. A chunk of one number alone is written like any other."""
        if self._group is None:
            self._group = self._zarr.open_group(self._folder, mode="r+", use_consolidated=False)
            self._arrays: dict[str, Any] = {}
        if name not in self._arrays:
            self._arrays[name] = self._group[name].with_config({"write_empty_chunks": True})
        return self._arrays[name]


class NetcdfResults(ZarrResults):
    """Results as a NetCDF file."""

    def __init__(self, folder: Path, layout: Layout) -> None:
        super().__init__(folder, layout)
        self._h5netcdf = import_package("h5netcdf", "--output", EXTRA)

    def finish(self, output: Path, tell: Callable[[int], object]) -> None:
        """Copy the store into a file, chunk by chunk."""
        layout = self._layout
        steps = dict(zip(layout.grid.dims, layout.grid.chunk_sizes, strict=True))
        with atomic_write_path(output) as temporary_path:
            # The temporary file has a lock of ours already.
            with self._h5netcdf.File(temporary_path, "w", locking=False) as file:
                file.dimensions = {d: n for v in layout.variables for d, n in zip(v.dims, v.shape, strict=True)}
                file.attrs.update(dict(layout.attributes))
                for variable in layout.variables:
                    chunks = tuple(steps.get(d, n) for d, n in zip(variable.dims, variable.shape, strict=True))
                    # NetCDF has no type for what is true or false: xarray's convention.
                    is_bool = variable.dtype == "bool"
                    dtype = "int8" if is_bool else variable.dtype
                    written = file.create_variable(variable.name, variable.dims, dtype, chunks=chunks or None)
                    written.attrs.update(dict(variable.attributes) | ({"dtype": "bool"} if is_bool else {}))
                for index in range(len(layout.grid)):
                    chunk = layout.grid.chunk(index)
                    for name, value in self.read(chunk).items():
                        variable = file.variables[name]
                        variable[chunk.select(variable.dimensions)] = value.astype(variable.dtype)
                    tell(index)


class ParquetResults:
    """Results as a table, a row for each element: a file for each chunk, which are row groups of one at the end."""

    def __init__(self, folder: Path, layout: Layout) -> None:
        self._parquet = import_package("pyarrow.parquet", "--output", EXTRA)
        self._folder, self._layout = folder, layout

    def create(self) -> None:
        """Make the folder of the chunks' files."""
        self._folder.mkdir(exist_ok=True)

    def resume(self) -> None:
        """Do nothing: whoever writes a file next removes what a killed process has left."""

    def write(self, chunk: Chunk, arrays: Arrays) -> None:
        """Write the variables of a chunk."""
        with atomic_write_path(self._name_file(chunk)) as temporary_path:
            self._parquet.write_table(self._make_table(chunk, arrays), temporary_path, row_group_size=2**31 - 1)

    def read(self, chunk: Chunk) -> dict[str, numpy.ndarray]:
        """Read the variables of a chunk."""
        import numpy

        table = self._parquet.read_table(self._name_file(chunk))
        values = {}
        for variable in self._layout.variables:
            dims = [dim for dim in variable.dims if dim in self._layout.grid.dims]
            own = variable.shape[len(dims) :]
            columns = [table.column(text).to_numpy() for text, _ in list_components(variable.name, own)]
            rows = numpy.stack(columns, 1).reshape(*chunk.shape, *own)
            # What does not differ along a dimension was repeated along it.
            place = tuple(slice(None) if d in dims else 0 for d in self._layout.grid.dims)
            values[variable.name] = rows[place]
        return values

    def finish(self, output: Path, tell: Callable[[int], object]) -> None:
        """Put the files of all chunks into one, a row group each."""
        grid = self._layout.grid
        with atomic_write_path(output) as temporary_path:
            schema = self._parquet.read_schema(self._name_file(grid.chunk(0)))
            with self._parquet.ParquetWriter(temporary_path, schema) as writer:
                for index in range(len(grid)):
                    writer.write_table(self._parquet.read_table(self._name_file(grid.chunk(index))))
                    tell(index)

    def _name_file(self, chunk: Chunk) -> Path:
        return self._folder / f"{chunk.index:09d}.parquet"

    def _make_table(self, chunk: Chunk, arrays: Arrays) -> Any:
        import numpy
        import pyarrow

        columns: dict[str, Any] = {}
        grid = self._layout.grid
        if len(grid.dims) > 1:
            places = numpy.indices(chunk.shape).reshape(len(grid.dims), -1)
            columns = {f"{dim}_index": row + a for dim, row, a in zip(grid.dims, places, chunk.start, strict=True)}
        fields = []
        for variable in self._layout.variables:
            rows = chunk.spread(arrays[variable.name], [dim for dim in variable.dims if dim in grid.dims])
            names = [text for text, _ in list_components(variable.name, rows.shape[1:])]
            columns |= dict(zip(names, rows.reshape(len(rows), -1).T, strict=True))
            fields += [(name, dict(variable.attributes)) for name in names]
        table = pyarrow.table(columns)
        attributes = dict(fields)
        schema = pyarrow.schema([f.with_metadata(attributes.get(f.name) or None) for f in table.schema])
        return table.cast(schema.with_metadata(dict(self._layout.attributes)))


def select_variables(layout: Layout, chunk: Chunk) -> list[StoredVariable]:
    """Return the variables that a chunk writes: of one that lacks a dimension, the first chunk along that."""
    starts = dict(zip(chunk.dims, chunk.start, strict=True))
    return [v for v in layout.variables if all(start == 0 for dim, start in starts.items() if dim not in v.dims)]

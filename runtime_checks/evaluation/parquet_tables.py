"""Parquet tables as data sets: a row for each element, a column for each number, or for all those of a variable.

The six numbers of ``stress`` are a column ``stress`` of lists, or the columns ``stress[0]`` to ``stress[5]``."""

from __future__ import annotations

import bisect
import importlib
import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exporter.common.errors import UsageError, summarize_error
from exporter.common.optional_packages import import_package
from runtime_checks.component_names import list_components
from runtime_checks.evaluation.data_set import EXTRA, UNITS, Variable, make_read_error

if TYPE_CHECKING:
    import numpy

ROW = "row"


class ParquetData:
    """The columns of tables, one below the other."""

    def __init__(self, files: Sequence[Path], where: str) -> None:
        parquet = import_package("pyarrow.parquet", where, EXTRA)
        self.where = where
        try:
            self._files = [parquet.ParquetFile(file) for file in files]
        except Exception as error:
            what, mend = "the data set cannot be opened", "copy it again, or write it anew"
            raise UsageError(what, where=where, got=summarize_error(error), mend=mend) from None
        self._schemas = [file.schema_arrow for file in self._files]
        self._schema = self._schemas[0]
        for path, schema in zip(files, self._schemas, strict=True):
            if not schema.equals(self._schema):
                what, expected = "the tables of a folder have different columns", f"those of {files[0].name}"
                raise UsageError(what, where=str(path), got=", ".join(schema.names), expected=expected)
        # Each row group with the rows before it.
        self._groups = [(f, i) for f in self._files for i in range(f.metadata.num_row_groups)]
        counts = [f.metadata.row_group(i).num_rows for f, i in self._groups]
        self._starts = [0, *itertools.accumulate(counts)]
        self._largest = max(counts, default=1)
        self._last: dict[str, tuple[int, Any]] = {}

    def list_names(self) -> list[str]:
        """List the names of all columns."""
        return list(self._schema.names)

    def list_coordinates(self) -> list[str]:
        """Return nothing: a table has columns alone."""
        return []

    def find_variable(self, name: str, event_shape: Sequence[int | str] = ()) -> Variable | None:
        """Return a variable: a column of its name, or one for each of its numbers."""
        columns = self._list_columns(name, event_shape)
        if not columns:
            return None
        shape = tuple(size for size in event_shape if isinstance(size, int))
        field = self._schema.field(columns[0])
        if columns == [name] and _is_list(field.type):
            has_open_size = len(shape) < len(event_shape)
            shape = _find_list_shape(field.type, event_shape, self._read_first(name) if has_open_size else None)
        dtypes = dict.fromkeys(_name_dtype(_value_type(self._schema.field(column).type)) for column in columns)
        if columns == [name] and not _is_list(field.type):
            shape = ()
        attributes = self._list_attributes(columns)
        return Variable(
            name,
            (ROW, *(f"{name}_{k}" for k in range(len(shape)))),
            (self._starts[-1], *shape),
            " and ".join(dtypes),
            tuple((key, text) for key, text in attributes[0].items() if not key.startswith("PARQUET:")),
            {ROW: self._largest},
            tuple(dict.fromkeys(a[UNITS] for a in attributes[1:] if a.get(UNITS))),
        )

    def _list_attributes(self, columns: Sequence[str]) -> list[dict[str, str]]:
        """List what each column of a variable says of it, in each file."""
        return [_decode(schema.field(column).metadata or {}) for schema in self._schemas for column in columns]

    def read(self, variable: Variable, slices: tuple[slice, ...]) -> numpy.ndarray:
        """Read rows of a variable. Raises ``UsageError`` if they cannot be read."""
        import numpy

        start, stop, _ = slices[0].indices(self._starts[-1])
        columns = self._list_columns(variable.name, variable.shape[1:])
        values = numpy.empty((stop - start, math.prod(variable.shape[1:])), variable.dtype)
        first = bisect.bisect_right(self._starts, start) - 1
        try:
            for number in range(first, len(self._groups)):
                low = self._starts[number]
                if low >= stop:
                    break
                table = self._read_group(number, variable.name, columns)
                rows = slice(max(start - low, 0), min(stop, self._starts[number + 1]) - low)
                place = slice(low + rows.start - start, low + rows.stop - start)
                if place.stop > place.start:
                    _copy_columns(table.slice(rows.start, rows.stop - rows.start), columns, values[place])
        except Exception as error:
            raise make_read_error(self.where, variable.name, error) from None
        return values.reshape(-1, *variable.shape[1:])[(slice(None), *slices[1:])]

    def close(self) -> None:
        """Close the files."""
        self._last.clear()
        for file in self._files:
            file.close()

    def _read_group(self, number: int, name: str, columns: Sequence[str]) -> Any:
        """Read a row group of a variable. The last one is kept: small chunks take several parts of it."""
        known, table = self._last.get(name, (-1, None))
        if known != number:
            file, group = self._groups[number]
            table = file.read_row_group(group, columns=columns)
            self._last[name] = (number, table)
        return table

    def _read_first(self, name: str) -> Any:
        """Read the first row of a column; None if there is none."""
        if not self._starts[-1]:
            return None
        number = bisect.bisect_right(self._starts, 0) - 1
        return self._read_group(number, name, [name]).column(name)[0].as_py()

    def _list_columns(self, name: str, event_shape: Sequence[int | str]) -> list[str]:
        if name in self._schema.names:
            return [name]
        if not event_shape or any(isinstance(size, str) for size in event_shape):
            return []
        columns = [text for text, _ in list_components(name, [s for s in event_shape if isinstance(s, int)])]
        return columns if set(columns) <= set(self._schema.names) else []


def _decode(metadata: Mapping[bytes, bytes]) -> dict[str, str]:
    return {key.decode(errors="replace"): text.decode(errors="replace") for key, text in metadata.items()}


def _copy_columns(table: Any, columns: Sequence[str], target: numpy.ndarray) -> None:
    """Copy columns, or lists of one column, into rows. What is not there of floats is NaN."""
    import numpy

    for k, name in enumerate(columns):
        column = table.column(name).combine_chunks()
        if _is_list(column.type):
            column = _flatten_lists(column, len(target))
        if column.null_count and not numpy.issubdtype(target.dtype, numpy.floating):
            raise ValueError(f"column {name!r} has {column.null_count} empty cells")
        flat = column.to_numpy(zero_copy_only=False)
        if flat.size != target.size // len(columns):
            raise ValueError(f"lists of {target.shape[1]} numbers are expected in every row, column {name!r}")
        if len(columns) == 1:
            target[:] = flat.reshape(target.shape)
        else:
            target[:, k] = flat


def _flatten_lists(column: Any, rows: int) -> Any:
    """Return the numbers of lists of one length. Raises ``ValueError`` if one is missing, or of another length."""
    compute: Any = importlib.import_module("pyarrow.compute")
    while _is_list(column.type):
        lengths = set(compute.list_value_length(column).to_pylist()) if len(column) else set()
        if column.null_count or len(lengths) > 1:
            what = ", ".join(sorted(map(str, lengths)))
            raise ValueError(f"lists of one length are expected in {rows} rows, not of {what}")
        column = column.flatten()
    return column


def _find_list_shape(kind: Any, wanted: Sequence[int | str], first: Any) -> tuple[int, ...]:
    """Return the shape that lists of a type have, as far as the type says it, else as it is wanted.

    An open size is that of the lists of the ``first`` row."""
    import pyarrow

    shape = list[int]()
    while _is_list(kind):
        size = wanted[len(shape)] if len(shape) < len(wanted) else -1
        if pyarrow.types.is_fixed_size_list(kind):
            size = kind.list_size
        elif isinstance(size, str):
            size = len(first or ())
        shape.append(size)
        first = first[0] if first else None
        kind = kind.value_type
    return tuple(shape)


def _is_list(kind: Any) -> bool:
    import pyarrow

    return any(is_kind(kind) for is_kind in (pyarrow.types.is_fixed_size_list, pyarrow.types.is_list)) or (
        pyarrow.types.is_large_list(kind)
    )


def _value_type(kind: Any) -> Any:
    while _is_list(kind):
        kind = kind.value_type
    return kind


def _name_dtype(kind: Any) -> str:
    """Return NumPy's name of a type, or Arrow's where NumPy has none."""
    try:
        return str(kind.to_pandas_dtype()().dtype.name)
    except (NotImplementedError, TypeError, AttributeError):
        return str(kind)

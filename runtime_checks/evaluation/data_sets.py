"""Data sets by their path: Zarr, NetCDF, Parquet."""

from __future__ import annotations

import hashlib
from pathlib import Path

from exporter.common.errors import UsageError
from runtime_checks.evaluation.data_set import NETCDF, PARQUET, DataSet
from runtime_checks.evaluation.parquet_tables import ParquetData
from runtime_checks.evaluation.xarray_data import open_by_xarray
from runtime_checks.evaluation.zarr_codecs import check_codecs, is_zarr


def open_data_set(path: Path) -> DataSet:
    """Open a data set, by what it is or by its suffix.

    Raises:
        UsageError: There is none, it is of an unknown kind, it cannot be read, or a codec of it may run code.
        MissingRuntimeError: The package is missing that reads it.
    """
    if is_zarr(path):
        check_codecs(path)
        # What was checked is the metadata of each array, not a copy of it beside them.
        return open_by_xarray(path, "zarr", consolidated=False)
    if path.is_file() and path.suffix in NETCDF:
        return open_by_xarray(path, "h5netcdf")
    if (path.is_file() and path.suffix in PARQUET) or (path.is_dir() and list_parquet_files(path)):
        return ParquetData(list_parquet_files(path), str(path))
    what = "there is no such data set" if not path.exists() else "the data set is of an unknown kind"
    expected = f"a store of Zarr, or a file or folder that ends in {', '.join((*NETCDF, *PARQUET))}"
    raise UsageError(what, where=str(path), got=path.suffix or "no suffix", expected=expected)


def list_parquet_files(path: Path) -> list[Path]:
    """List the files of a table, those of a folder and of the folders in it by name."""
    return sorted(file for suffix in PARQUET for file in path.rglob(f"*{suffix}")) if path.is_dir() else [path]


def digest_data(path: Path) -> str:
    """Return a digest of names, sizes and times of change of all files of a data set: of another state it differs."""
    digest = hashlib.sha256()
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        status = file.stat()
        if not file.is_dir():
            digest.update(f"{file.relative_to(path)} {status.st_size} {status.st_mtime_ns}\n".encode())
    return digest.hexdigest()

"""Data sets for tests: steps of ``return_map`` from rest, as NumPy arrays and as files."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy
import pyarrow
import pyarrow.parquet
import torch
import xarray
from project import ARTIFACTS

import torchferry

RETURN_MAP = ARTIFACTS / "return_map.pt"
SHAPES: dict[str, tuple[int, ...]] = {"strain": (6,), "strain~1": (6,), "stress~1": (6,), "ep~1": ()}


def make_steps(count: int, seed: int = 0) -> dict[str, numpy.ndarray]:
    """Elements that yield: arrays ``(count, *event)`` by name."""
    random = numpy.random.default_rng(seed)
    values = {name: numpy.zeros((count, *shape)) for name, shape in SHAPES.items()}
    values["strain"] = 0.02 * (2 * random.random((count, 6)) - 1)
    return values


def make_dataset(values: dict[str, numpy.ndarray]) -> xarray.Dataset:
    """The same along the dimension ``point``, which has a coordinate."""
    variables = {name: (["point", *(f"{name}_c{k}" for k in range(v.ndim - 1))], v) for name, v in values.items()}
    count = len(next(iter(values.values())))
    return xarray.Dataset(variables, coords={"point": numpy.arange(count) * 10})


def write_data(path: Path, values: dict[str, numpy.ndarray], **encoding: Any) -> Path:
    """Write them to ``.zarr``, ``.nc`` or ``.parquet``."""
    if path.suffix == ".parquet":
        columns: dict[str, Any] = {}
        for name, value in values.items():
            flat = value.reshape(len(value), -1)
            texts = [f"{name}[{k}]" for k in range(flat.shape[1])] if value.ndim > 1 else [name]
            columns |= dict(zip(texts, flat.T, strict=True))
        pyarrow.parquet.write_table(pyarrow.table(columns), path, **encoding)
        return path
    write_dataset(path, make_dataset(values))
    return path


def write_dataset(path: Path, dataset: xarray.Dataset, **options: Any) -> Path:
    """Write a dataset by its suffix."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if path.suffix == ".zarr":
            dataset.to_zarr(path, **options)
        else:
            dataset.to_netcdf(path, engine="h5netcdf", **options)
    return path


def read_results(path: Path) -> dict[str, numpy.ndarray]:
    """Read variables of results, those of Parquet by column."""
    if path.suffix == ".parquet":
        table = pyarrow.parquet.read_table(path)
        return {name: table[name].to_numpy() for name in table.column_names}
    engine: Any = "zarr" if path.suffix == ".zarr" else "h5netcdf"
    with xarray.open_dataset(path, engine=engine) as dataset:
        return {str(name): dataset[name].to_numpy() for name in dataset.variables}


def call_directly(values: dict[str, numpy.ndarray], method: str = "forward", path: Path = RETURN_MAP) -> Any:
    """Call the archive itself, at once."""
    model = torchferry.load(path)
    outputs = model.call(method, {name: torch.from_numpy(value) for name, value in values.items()})
    return {name: value.detach().numpy() for name, value in outputs.items()}

"""Results of material points as files: ``.csv`` and ``.parquet`` with a row for each step of each point, ``.npz`` and
``.pt`` with arrays ``(steps, points, *event)`` by name."""

from __future__ import annotations

import csv
import math
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from exporter.common.atomic_files import atomic_write_path
from exporter.common.errors import MissingRuntimeError, UsageError
from runtime_checks.component_names import list_components

SUFFIXES = (".csv", ".parquet", ".npz", ".pt")
STEP, POINT = "step", "point"


def check_result_path(path: Path) -> None:
    """Raise ``UsageError`` for a suffix that says no format, ``MissingRuntimeError`` where its writer is missing."""
    if path.suffix not in SUFFIXES:
        what, expected = "the results have no format of this suffix", ", ".join(SUFFIXES)
        raise UsageError(what, where=f"-o {path}", got=path.suffix or "none", expected=expected)
    if path.suffix == ".parquet":
        try:
            import pyarrow.parquet  # noqa: F401
        except ImportError as error:
            what, mend = "pyarrow is not installed; it is needed to write .parquet", 'pip install "torchferry[parquet]"'
            raise MissingRuntimeError(what, where=f"-o {path}", got=str(error), mend=mend) from None


def write_results(path: Path, results: Mapping[str, torch.Tensor], shapes: Mapping[str, Sequence[int]]) -> None:
    """Write values ``(steps, *batch, *event)``, of the events' ``shapes``, in the format of the path's suffix."""
    with atomic_write_path(path) as temporary_path:
        if path.suffix == ".pt":
            torch.save(dict(results), temporary_path)
        elif path.suffix == ".npz":
            import numpy

            # Numpy's own function has names of arguments, which no variable could have.
            with zipfile.ZipFile(temporary_path, "w", zipfile.ZIP_DEFLATED) as archive:
                for name, value in results.items():
                    with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                        numpy.lib.format.write_array(file, _to_array(value), allow_pickle=False)
        elif path.suffix == ".parquet":
            import pyarrow
            import pyarrow.parquet

            columns = {name: _to_array(values) for name, values in _list_columns(results, shapes)}
            pyarrow.parquet.write_table(pyarrow.table(columns), temporary_path)
        else:
            names, columns = zip(*_list_columns(results, shapes), strict=True)
            with temporary_path.open("w", newline="") as file:
                writer = csv.writer(file)
                writer.writerow(names)
                writer.writerows(zip(*(values.tolist() for values in columns), strict=True))


def _to_array(value: torch.Tensor) -> Any:
    """Return an array; numpy has no bfloat16."""
    return (value.float() if value.dtype == torch.bfloat16 else value).numpy()


def _list_columns(
    results: Mapping[str, torch.Tensor], shapes: Mapping[str, Sequence[int]]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield name and numbers of each column: step and point, then each component of each variable."""
    name, value = next(iter(results.items()))
    steps, points = value.shape[0], math.prod(value.shape[1 : value.ndim - len(shapes[name])])
    yield STEP, torch.arange(steps).repeat_interleave(points)
    yield POINT, torch.arange(points).repeat(steps)
    for name, value in results.items():
        flat = value.reshape(steps * points, -1)
        for k, (text, _) in enumerate(list_components(name, shapes[name])):
            if flat.is_complex():
                yield from ((f"{part}({text})", getattr(flat[:, k], part)) for part in ("real", "imag"))
            else:
                yield text, flat[:, k]

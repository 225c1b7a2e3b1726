"""Tensors as ``torch.save`` writes them, read from a file that may be anybody's.

``runtime_checks/native/src/pickles.cpp`` refuses the same."""

from __future__ import annotations

import io
import zipfile
from typing import TYPE_CHECKING, Any

from exporter.archive.format_limits import MAX_NESTING
from exporter.archive.nesting import measure_depth
from exporter.archive.zip_records import check_one_directory
from exporter.common.errors import ArchiveError

if TYPE_CHECKING:
    import torch


def load_tensors(data: bytes, what: str, where: str) -> dict[Any, Any]:
    """Return a dict of tensors, or of dicts of tensors; ``what`` names them in errors.

    Each is dense, on the CPU, and has the bytes of all its elements: a small file makes no large tensor. Raises
    ``ArchiveError``, also for what holds anything else."""
    import torch

    try:
        if not data.startswith(b"PK\3\4"):
            # torch would take a pickle of an old format, whatever zip file stands behind it.
            raise ValueError("no zip file")
        with zipfile.ZipFile(io.BytesIO(data)) as packed:
            check_one_directory(packed, len(data))
            size = sum(entry.file_size for entry in packed.infolist())
            if size > len(data):
                raise ValueError(f"records of {size} bytes in {len(data)}")
            for name in packed.namelist():
                # torch's reader does not look at the case of letters.
                if name.lower().endswith("/data.pkl") and (depth := measure_depth(packed.read(name))) > MAX_NESTING:
                    raise ValueError(f"{depth} containers in each other, at most {MAX_NESTING}")
        value = torch.load(io.BytesIO(data), weights_only=True)
    except Exception as error:
        raise ArchiveError(f"{what} cannot be read", where=where, got=str(error)) from None
    for tensor in _list_values(value):
        if not isinstance(tensor, torch.Tensor):
            raise ArchiveError(f"{what} are not tensors by name", where=where, got=type(tensor).__name__)
        if not _is_whole(tensor):
            got = f"{list(tensor.shape)}, {str(tensor.layout).removeprefix('torch.')}, on {tensor.device}"
            expected = "dense tensors on the CPU, with the bytes of all their elements"
            raise ArchiveError(f"{what} are not whole tensors", where=where, got=got, expected=expected)
    return value


def _list_values(value: Any) -> list[Any]:
    """Return what a dict, or dicts in a dict, hold; anything else is a value itself."""
    if not isinstance(value, dict):
        return [value]
    inner = [v for v in value.values() if isinstance(v, dict)]
    return [v for group in inner for v in group.values()] + [v for v in value.values() if not isinstance(v, dict)]


def _is_whole(tensor: torch.Tensor) -> bool:
    import torch

    if tensor.layout != torch.strided or tensor.device.type != "cpu" or tensor.is_quantized:
        return False
    return tensor.untyped_storage().nbytes() >= tensor.numel() * tensor.element_size()

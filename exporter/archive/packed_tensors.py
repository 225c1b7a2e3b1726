"""Tensors as ``torch.save`` writes them, read from a file that may be anybody's.

``runtime_checks/native/src/pickles.cpp`` refuses the same."""

from __future__ import annotations

import io
import zipfile
from typing import TYPE_CHECKING, Any

from exporter.common.errors import ArchiveError

if TYPE_CHECKING:
    import torch


def load_tensors(data: bytes, what: str, where: str) -> dict[Any, Any]:
    """Return a dict of tensors, or of dicts of tensors; ``what`` names them in errors.

    Each is dense, on the CPU, and has the bytes of all its elements: a small file makes no large tensor. Raises
    ``ArchiveError``."""
    import torch

    try:
        with zipfile.ZipFile(io.BytesIO(data)) as packed:
            size = sum(entry.file_size for entry in packed.infolist())
        if size > len(data):
            raise ValueError(f"records of {size} bytes in {len(data)}")
        value = torch.load(io.BytesIO(data), weights_only=True)
    except Exception as error:
        raise ArchiveError(f"{what} cannot be read", where=where, got=str(error)) from None
    if not isinstance(value, dict):
        raise ArchiveError(f"{what} are not tensors by name", where=where, got=type(value).__name__)
    groups = [value, *(v for v in value.values() if isinstance(v, dict))]
    for tensor in (v for group in groups for v in group.values() if isinstance(v, torch.Tensor)):
        if not _is_whole(tensor):
            got = f"{list(tensor.shape)}, {str(tensor.layout).removeprefix('torch.')}, on {tensor.device}"
            expected = "dense tensors on the CPU, with the bytes of all their elements"
            raise ArchiveError(f"{what} are not whole tensors", where=where, got=got, expected=expected)
    return value


def _is_whole(tensor: torch.Tensor) -> bool:
    import torch

    if tensor.layout != torch.strided or tensor.device.type != "cpu" or tensor.is_quantized:
        return False
    return tensor.untyped_storage().nbytes() >= tensor.numel() * tensor.element_size()

"""Tensors of a TorchScript module, read from the bytes of its records: nothing of the file is run.

Source of the format: torch/csrc/jit/serialization/pickler.cpp (``pushTensorReference``, ``pushStorageOfTensor``)."""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from exporter.archive.format_limits import MAX_INFLATED_BYTES, MAX_SOURCE_NESTING
from exporter.archive.nesting import measure_depth
from exporter.archive.pt_archive import Archive
from exporter.common.errors import ArchiveError

if TYPE_CHECKING:
    import torch

# Names of types of elements by those of storages, where they differ by more than the case of letters.
_ELEMENTS = {"Half": "float16", "Float": "float32", "Double": "float64", "BFloat16": "bfloat16"}
_ELEMENTS |= {"Char": "int8", "Byte": "uint8", "Short": "int16", "Int": "int32", "Long": "int64", "Bool": "bool"}
_ELEMENTS |= {"ComplexFloat": "complex64", "ComplexDouble": "complex128"}


def read_module_tensors(archive: Archive, names: Collection[str]) -> dict[str, torch.Tensor]:
    """Return tensors of an archive's module by their dotted names, of those that it has.

    Raises ``ArchiveError`` if the record of the module is damaged, or a tensor reaches beyond its record."""
    where = f"{archive.path}, record data.pkl"
    try:
        data = archive.record("data.pkl")
        # It reads the lengths first: Python's reader makes room for as many bytes as a pickle says that it has.
        if measure_depth(data) > MAX_SOURCE_NESTING:
            raise ValueError("a pickle that is nested too deeply")
        root = _Reader(data).load()
        if archive.record("byteorder").decode() != sys.byteorder:
            raise ValueError("bytes in another order than this machine's")
        values = {name: _find(root, name) for name in names}
        return {name: _read_tensor(archive, v) for name, v in values.items() if isinstance(v, _SavedTensor)}
    except ArchiveError:
        raise
    # A pickle that somebody changed fails anywhere in Python's reader.
    except Exception as error:
        got = f"{type(error).__name__}: {error}"
        raise ArchiveError("the module's tensors cannot be read", where=where, got=got) from None


class _Object:
    """What the record has where the module has an object, or a value of another kind than a tensor."""

    attributes: Mapping[Any, Any] = MappingProxyType({})

    def __new__(cls, *arguments: object) -> _Object:
        return super().__new__(cls)

    def __setstate__(self, state: object) -> None:
        if isinstance(state, dict):
            self.attributes = state


@dataclass(frozen=True)
class _SavedTensor:
    """A tensor as the record describes it: elements of the storage ``key``."""

    element: str
    key: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


# Python's own class in Python: the one in C makes as much room as the largest number in a pickle says.
class _Reader(pickle._Unpickler):  # pyright: ignore[reportAttributeAccessIssue]
    """Reads objects without any class of the file or of this process."""

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _describe_tensor
        return name.removesuffix("Storage") if module == "torch" else _Object

    def persistent_load(self, pid: Any) -> Any:
        return pid


def _describe_tensor(storage: Any, offset: int, shape: Any, strides: Any, *rest: object) -> _SavedTensor:
    _, element, key, *_ = storage
    return _SavedTensor(_ELEMENTS[element], str(key), int(offset), tuple(map(int, shape)), tuple(map(int, strides)))


def _find(root: Any, name: str) -> Any:
    """Return the attribute at a dotted name, or None."""
    value = root
    for part in name.split("."):
        value = value.attributes.get(part) if isinstance(value, _Object) else None
    return value


def _read_tensor(archive: Archive, saved: _SavedTensor) -> torch.Tensor:
    import torch

    dtype: torch.dtype = getattr(torch, saved.element)
    data = bytearray(archive.record(f"data/{saved.key}"))
    size, count = dtype.itemsize, 1
    for length in saved.shape:
        count *= length
    last = saved.offset + sum((n - 1) * step for n, step in zip(saved.shape, saved.strides, strict=True))
    if min((saved.offset, *saved.shape, *saved.strides)) < 0 or (count and (last + 1) * size > len(data)):
        raise ValueError(f"a tensor reaches beyond the record data/{saved.key}")
    if count * size > max(len(data), MAX_INFLATED_BYTES):
        raise ValueError(f"a tensor of {count} elements")
    if not count:
        return torch.empty(saved.shape, dtype=dtype)
    return torch.frombuffer(data, dtype=dtype).as_strided(saved.shape, saved.strides, saved.offset)

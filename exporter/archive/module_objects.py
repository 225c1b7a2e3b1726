"""The objects of a TorchScript module, read from the bytes of its records: nothing of the file is run.

Source of the format: torch/csrc/jit/serialization/pickler.cpp (``pushTensorReference``, ``pushStorageOfTensor``)."""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from exporter.archive.format_limits import MAX_CODE_NESTING
from exporter.archive.nesting import measure_depth
from exporter.archive.pt_archive import Archive
from exporter.common.errors import ArchiveError

if TYPE_CHECKING:
    import torch

# Names of types of elements by those of storages, where they differ by more than the case of letters.
_ELEMENTS = {"Half": "float16", "Float": "float32", "Double": "float64", "BFloat16": "bfloat16"}
_ELEMENTS |= {"Char": "int8", "Byte": "uint8", "Short": "int16", "Int": "int32", "Long": "int64", "Bool": "bool"}
_ELEMENTS |= {"ComplexFloat": "complex64", "ComplexDouble": "complex128"}
_LISTS = frozenset({"build_intlist", "build_doublelist", "build_boollist", "build_tensorlist"})

# Of tensors that show the bytes of their records more than once.
MAX_REPEATED_BYTES = 2**30


class SavedObject:
    """What the record has where the module has an object: the path of its class, and its attributes by name."""

    class_name = ""
    attributes: Mapping[Any, Any] = MappingProxyType({})

    def __new__(cls, *arguments: object) -> SavedObject:
        return super().__new__(cls)

    def __setstate__(self, state: object) -> None:
        if isinstance(state, dict):
            self.attributes = state


@dataclass(frozen=True)
class SavedTensor:
    """A tensor as the record describes it: elements of the storage ``key``."""

    element: str
    key: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    requires_grad: bool = False


@dataclass(frozen=True)
class SavedDevice:
    """A device, by its name."""

    name: str


def read_module_tensors(archive: Archive, names: Collection[str]) -> dict[str, torch.Tensor]:
    """Return tensors of an archive's module by their dotted names, of those that it has.

    Raises ``ArchiveError`` if the record of the module is damaged, or a tensor reaches beyond its record."""
    root = read_objects(archive, "data.pkl")
    values = {name: find_attribute(root, name) for name in names}
    memory = SavedMemory(archive, "data")
    return {name: memory.read_tensor(v) for name, v in values.items() if isinstance(v, SavedTensor)}


def read_objects(archive: Archive, record: str) -> Any:
    """Return what a pickle of an archive holds: objects, tensors, numbers, texts, and lists and dicts of them.

    Raises ``ArchiveError`` if it is damaged."""
    data = archive.record(record)
    # A pickle that somebody changed fails anywhere in Python's reader.
    try:
        # It reads the lengths first: Python's reader makes room for as many bytes as a pickle says that it has.
        if measure_depth(data) > MAX_CODE_NESTING:
            raise ValueError("a pickle that is nested too deeply")
        return _Reader(data).load()
    except Exception as error:
        raise _make_damage_error(archive, record, error) from None


def find_attribute(root: Any, name: str) -> Any:
    """Return the attribute at a dotted name, or None."""
    value = root
    for part in name.split(".") if name else ():
        value = value.attributes.get(part) if isinstance(value, SavedObject) else None
    return value


@dataclass
class SavedMemory:
    """The storages of an archive in one of its folders. Tensors of one storage share it."""

    archive: Archive
    folder: str
    _storages: dict[str, bytearray] = field(default_factory=dict)
    # Bytes of tensors beyond those of the records, which strides of 0 repeat.
    _repeated: int = 0

    def read_tensor(self, saved: SavedTensor) -> torch.Tensor:
        """Return a tensor. Raises ``ArchiveError`` for one that reaches beyond its record, and for other bytes."""
        try:
            return self._read_tensor(saved)
        except ArchiveError:
            raise
        except Exception as error:
            raise _make_damage_error(self.archive, f"{self.folder}.pkl", error) from None

    def _read_tensor(self, saved: SavedTensor) -> torch.Tensor:
        import torch

        if not self._storages and self.archive.record("byteorder").decode() != sys.byteorder:
            raise ValueError("bytes in another order than this machine's")
        if saved.key not in self._storages:
            self._storages[saved.key] = bytearray(self.archive.record(f"{self.folder}/{saved.key}"))
        data = self._storages[saved.key]
        dtype: torch.dtype = getattr(torch, saved.element)
        size, count = dtype.itemsize, 1
        for length in saved.shape:
            count *= length
        last = saved.offset + sum((n - 1) * step for n, step in zip(saved.shape, saved.strides, strict=True))
        if min((saved.offset, *saved.shape, *saved.strides)) < 0 or (count and (last + 1) * size > len(data)):
            raise ValueError(f"a tensor reaches beyond the record {self.folder}/{saved.key}")
        self._repeated += max(0, count * size - len(data))
        if self._repeated > MAX_REPEATED_BYTES:
            raise ValueError(f"tensors of {self._repeated} bytes beyond their records")
        if not count:
            return torch.empty(saved.shape, dtype=dtype)
        return torch.frombuffer(data, dtype=dtype).as_strided(saved.shape, saved.strides, saved.offset)


# Python's own class in Python: the one in C makes as much room as the largest number in a pickle says.
class _Reader(pickle._Unpickler):  # pyright: ignore[reportAttributeAccessIssue]
    """Reads objects without any class of the file or of this process."""

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _describe_tensor
        if module == "torch.jit._pickle":
            return list if name in _LISTS else _give_first
        if (module, name) == ("torch", "device"):
            return SavedDevice
        if module == "torch":
            return name.removesuffix("Storage")
        return type("SavedObject", (SavedObject,), {"class_name": f"{module}.{name}"})

    def persistent_load(self, pid: Any) -> Any:
        return pid


def _give_first(value: Any, *_: object) -> Any:
    """Return a value, without the type that stands beside it."""
    return value


def _describe_tensor(storage: Any, offset: int, shape: Any, strides: Any, *rest: object) -> SavedTensor:
    _, element, key, *_ = storage
    lengths, steps, has_gradient = tuple(map(int, shape)), tuple(map(int, strides)), bool(rest and rest[0])
    return SavedTensor(_ELEMENTS[element], str(key), int(offset), lengths, steps, has_gradient)


def _make_damage_error(archive: Archive, record: str, error: Exception) -> ArchiveError:
    where, got = f"{archive.path}, record {record}", f"{type(error).__name__}: {error}"
    return ArchiveError("the module's tensors cannot be read", where=where, got=got)

"""Tensors and other constants that saved graphs hold."""

from __future__ import annotations

import ctypes
import enum
import hashlib
import io
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from exporter.archive.tensor_spec import name_dtype
from exporter.common.errors import ArchiveError
from exporter.saved_code.ir import TensorConstant


@dataclass
class TensorTable:
    """A module's tensors as its graphs name them. ``find`` gives the tensor of an attribute; ``named_paths``: tensors
    known by their path."""

    find: Callable[[str], torch.Tensor]
    named_paths: frozenset[str]
    values: dict[str, torch.Tensor] = field(default_factory=dict)
    _constants: dict[str, TensorConstant] = field(default_factory=dict)

    def get(self, path: str) -> TensorConstant:
        """Return the tensor of an attribute."""
        if path not in self._constants:
            self._constants[path] = self.add(self.find(path), path)
        return self._constants[path]

    def add(self, value: torch.Tensor, path: str = "") -> TensorConstant:
        """Add a tensor, by its path or its digest, and return the constant that stands for it."""
        dtype = name_dtype(value)
        digest = compute_digest(value)
        name = path if path in self.named_paths else ""
        key = path or digest
        self.values.setdefault(key, value)
        address = value.untyped_storage().data_ptr() if value.layout == torch.strided else 0
        return TensorConstant(dtype, tuple(value.shape), digest, name, key, f"memory {address or key}")


def compute_digest(value: torch.Tensor) -> str:
    """Return the sha256 of dtype, shape and bytes."""
    if value.is_meta:
        # It has no numbers.
        data = b"meta"
    elif value.is_quantized or value.layout != torch.strided:
        buffer = io.BytesIO()
        torch.save(value.detach().cpu(), buffer)
        data = buffer.getvalue()
    else:
        plain = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
        data = ctypes.string_at(plain.data_ptr(), plain.numel() * plain.element_size())
    digest = hashlib.sha256(f"{value.dtype} {list(value.shape)} ".encode())
    digest.update(data)
    return digest.hexdigest()


def format_literal(value: Any) -> str:
    """Return a value as Python writes it: a float in the fewest digits that read back to the bit."""
    if isinstance(value, (list, tuple)):
        ends = "[]" if isinstance(value, list) else "()"
        return ends[0] + ", ".join(map(format_literal, value)) + ends[1]
    if isinstance(value, dict):
        return "{" + ", ".join(f"{format_literal(k)}: {format_literal(v)}" for k, v in value.items()) + "}"
    if isinstance(value, torch.Tensor):
        return f"tensor:{compute_digest(value)}"
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}={format_literal(value.value)}"
    if isinstance(value, (torch.device, torch.dtype, torch.layout, torch.memory_format)):
        return str(value)
    if isinstance(value, (bool, int, float, complex, str, type(None))):
        return repr(value)
    state = getattr(value, "__getstate__", None) if isinstance(value, torch.ScriptObject) else None
    if state is None or isinstance(value, torch.ScriptModule):
        got = f"{type(value).__name__} {getattr(value, '_type', lambda: '')()}".strip()
        expected = "tensors, numbers, texts, enumerations, and lists and dicts of them"
        raise ArchiveError("the graph holds an object whose value cannot be read", got=got, expected=expected)
    script_type: Any = value._type()
    return f"{script_type.qualified_name()}{format_literal(state())}"

"""The tensors and other constants that saved graphs hold."""

from __future__ import annotations

import ctypes
import enum
import functools
import hashlib
import io
from dataclasses import dataclass, field
from typing import Any

import torch

from exporter.common.errors import ArchiveError
from exporter.graph.ir import Held


@dataclass
class Tensors:
    """The tensors of a module as the graphs name them. ``named``: those that are known by their path; ``changing``: the
    attributes that its methods set."""

    module: torch.jit.ScriptModule
    named: frozenset[str]
    changing: frozenset[str]
    values: dict[str, torch.Tensor] = field(default_factory=dict)
    _met: dict[str, Held] = field(default_factory=dict)

    def at(self, path: str) -> Held:
        """The tensor of an attribute."""
        if path not in self._met:
            self._met[path] = self.held(self.attribute(path), path)
        return self._met[path]

    def held(self, value: torch.Tensor, path: str = "") -> Held:
        dtype = str(value.dtype).removeprefix("torch.")
        digest = digest_of(value)
        name = path if path in self.named else ""
        key = path or digest
        self.values.setdefault(key, value)
        place = value.untyped_storage().data_ptr() if value.layout == torch.strided else 0
        return Held(dtype, tuple(value.shape), digest, name, key, f"memory {place or key}")

    def attribute(self, path: str) -> Any:
        """As torch holds it: Python's modules have attributes of their own, like ``graph``."""
        return functools.reduce(lambda of, name: of.getattr(name), path.split(".") if path else (), self.module._c)


def digest_of(value: torch.Tensor) -> str:
    """sha256 of dtype, shape and bytes."""
    if value.is_meta:
        # It has no numbers.
        whole = b"meta"
    elif value.is_quantized or value.layout != torch.strided:
        buffer = io.BytesIO()
        torch.save(value.detach().cpu(), buffer)
        whole = buffer.getvalue()
    else:
        plain = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
        whole = ctypes.string_at(plain.data_ptr(), plain.numel() * plain.element_size())
    found = hashlib.sha256(f"{value.dtype} {list(value.shape)} ".encode())
    found.update(whole)
    return found.hexdigest()


def literal(value: Any) -> str:
    """As Python writes it: a float in the fewest digits that read back to the bit."""
    if isinstance(value, (list, tuple)):
        ends = "[]" if isinstance(value, list) else "()"
        return ends[0] + ", ".join(map(literal, value)) + ends[1]
    if isinstance(value, dict):
        return "{" + ", ".join(f"{literal(k)}: {literal(v)}" for k, v in value.items()) + "}"
    if isinstance(value, torch.Tensor):
        return f"tensor:{digest_of(value)}"
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}={literal(value.value)}"
    if isinstance(value, (torch.device, torch.dtype, torch.layout, torch.memory_format)):
        return str(value)
    if isinstance(value, (bool, int, float, complex, str, type(None))):
        return repr(value)
    state = getattr(value, "__getstate__", None) if isinstance(value, torch.ScriptObject) else None
    if state is None or isinstance(value, torch.ScriptModule):
        raise ArchiveError(
            "the graph holds an object whose value cannot be read",
            got=f"{type(value).__name__} {getattr(value, '_type', lambda: '')()}".strip(),
            expected="tensors, numbers, texts, enumerations, and lists and dicts of them",
        )
    kind: Any = value._type()
    return f"{kind.qualified_name()}{literal(state())}"

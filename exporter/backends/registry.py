"""The backends by format."""

from __future__ import annotations

from exporter.backends.backend import Backend
from exporter.backends.c_kernel.backend import KernelBackend
from exporter.backends.onnx.backend import OnnxBackend
from exporter.backends.torch_export.backend import CompiledBackend, ProgramBackend

_ALL: tuple[Backend, ...] = (OnnxBackend(), CompiledBackend(), ProgramBackend(), KernelBackend())
BACKENDS = {backend.format.name: backend for backend in _ALL}

"""Files of every format that torchferry writes, opened by their name."""

from __future__ import annotations

from pathlib import Path

import torch

from exporter.archive.formats import FORMATS, infer_format
from exporter.archive.kernel_container import KernelFiles
from exporter.archive.module_objects import read_module_tensors
from exporter.archive.onnx_container import OnnxFiles
from exporter.archive.pt_archive import Archive
from runtime_checks.kernels.embedded import EmbeddedKernel, embedded_kernel


def infer_file_format(path: Path) -> str:
    """Return the format of a file by its name, ``pt`` if it has no known suffix."""
    return infer_format(path) or "pt"


Container = Archive | OnnxFiles | KernelFiles | EmbeddedKernel


def open_container(path: Path) -> Container:
    """Read a file, checked against its digests. Raise ``ArchiveError`` if parts are missing, damaged or not ours."""
    return FORMATS[infer_file_format(path)].read(path)


def select_for_runtime(opened: Container, runtime: str) -> Container:
    """Return what runs in a runtime: of an archive in ``c`` its kernel, with the errors of ``embedded_kernel``."""
    return embedded_kernel(opened) if runtime == "c" and isinstance(opened, Archive) else opened


def read_parameters(opened: Container) -> dict[str, torch.Tensor]:
    """Return the values of the parameters that the contract lets users set, if a method gives derivatives."""
    if isinstance(opened, EmbeddedKernel):
        opened = opened.archive
    if isinstance(opened, Archive):
        if opened.holds == "graphs":
            has_derivatives = "jacobian" in opened.contract.methods or opened.contract.differentiable
            return read_module_tensors(opened, [p.name for p in opened.contract.parameters] if has_derivatives else [])
        values = {n: t for method_values in opened.parameters().values() for n, t in method_values.items()}
        return values if "jacobian" in opened.contract.methods else {}
    return opened.parameters() if "jacobian" in opened.contract.methods else {}

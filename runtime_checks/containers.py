"""A file of any kind that torchferry writes, by its name."""

from __future__ import annotations

from pathlib import Path

import torch

from exporter.archive import kernel_container, onnx_container, pt_archive
from exporter.archive.formats import format_of
from exporter.archive.kernel_container import KernelFiles
from exporter.archive.onnx_container import OnnxFiles
from exporter.archive.pt_archive import Archive
from runtime_checks.kernels.embedded import Carried, carried
from runtime_checks.model import parameter_values


def kind(path: Path) -> str:
    return format_of(path) or "pt"


Container = Archive | OnnxFiles | KernelFiles | Carried


def read(path: Path) -> Container:
    """Everything against its digests. Raises ``ArchiveError`` for what is missing, damaged or not ours."""
    if kind(path) == "c":
        return kernel_container.read(path)
    return onnx_container.read(path) if kind(path) == "onnx" else pt_archive.read(path)


def in_runtime(opened: Container, runtime: str) -> Container:
    """What of a file runs in a runtime: of an archive in ``c`` the kernel that it carries. Raises as ``carried``."""
    return carried(opened) if runtime == "c" and isinstance(opened, Archive) else opened


def parameters(opened: Container) -> dict[str, torch.Tensor]:
    """Values of those that the contract offers to be set, where a method gives derivatives."""
    if isinstance(opened, Carried):
        opened = opened.archive
    if isinstance(opened, Archive):
        if opened.holds == "graphs":
            return parameter_values(opened.path, opened.contract)
        whole = {n: t for of in opened.parameters().values() for n, t in of.items()}
        return whole if "jacobian" in opened.contract.methods else {}
    return opened.parameters() if "jacobian" in opened.contract.methods else {}

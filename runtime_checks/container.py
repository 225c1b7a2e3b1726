"""A file of any kind that torchferry writes, by its name."""

from __future__ import annotations

from pathlib import Path

import torch

from exporter import archive, kernel_files, onnx_files
from exporter.archive import Archive
from exporter.kernel_files import KernelFiles
from exporter.kinds import format_of
from exporter.onnx_files import OnnxFiles
from runtime_checks.carried import Carried, carried
from runtime_checks.load import parameter_values


def kind(path: Path) -> str:
    return format_of(path) or "pt"


Container = Archive | OnnxFiles | KernelFiles | Carried


def read(path: Path) -> Container:
    """Everything against its digests. Raises ``ArchiveError`` for what is missing, damaged or not ours."""
    if kind(path) == "c":
        return kernel_files.read(path)
    return onnx_files.read(path) if kind(path) == "onnx" else archive.read(path)


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

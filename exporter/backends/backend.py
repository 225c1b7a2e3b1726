"""What a backend is: it writes an archive as a container of another format, and the caller verifies that."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from exporter.archive.contract import Contract
from exporter.archive.formats import FORMATS, Format
from exporter.archive.pt_archive import Archive
from exporter.common.errors import UsageError

# torch's own translations to ONNX are written for the first; every runtime since 2023 has it.
OPSET = 18
OPSETS = range(18, 24)


# What a kernel's Newton loops solve for.
REDUCTIONS = ("none", "all")


@dataclass(frozen=True)
class KernelOptions:
    """How kernels are written: ``finite_math`` lets one take ``0 * x`` for 0; ``reduce`` says whether its Newton loops
    may solve for fewer numbers than they have unknowns; ``has_cuda`` adds sources for GPUs."""

    finite_math: bool = False
    reduce: str = "all"
    has_cuda: bool = False

    def __post_init__(self) -> None:
        if self.reduce not in REDUCTIONS:
            what, expected = "there is no such reduction", ", ".join(REDUCTIONS)
            raise UsageError(what, where="--reduce", got=self.reduce, expected=expected)


@dataclass(frozen=True)
class WriteOptions:
    """How containers are written: ``opset`` is ONNX's version of operators; ``kernel`` is how kernels are;
    ``kernel_files`` are the kernel's files by name, if they exist already."""

    opset: int = OPSET
    kernel: KernelOptions = KernelOptions()
    kernel_files: Mapping[str, bytes] | None = None

    def __post_init__(self) -> None:
        if self.opset not in OPSETS:
            expected = f"{OPSETS[0]} to {OPSETS[-1]}"
            raise UsageError("this opset is not supported", where="--opset", got=str(self.opset), expected=expected)


class Backend(Protocol):
    """A writer of one format, in the module ``backend`` of a folder of its own; its line of ``FORMATS`` names it."""

    @property
    def format(self) -> Format: ...

    def require(self) -> None:
        """Raise ``MissingRuntimeError`` if a package or program that the format needs is missing."""
        ...

    def write(
        self, opened: Archive, output: Path, options: WriteOptions
    ) -> AbstractContextManager[tuple[Path, Contract]]:
        """Write the container to a temporary place, and yield its path and contract for the caller to verify.

        It replaces what is at ``output`` only if the caller's block succeeds; a failure leaves or changes no file.
        Raises ``UnsupportedError``, with the model and line in the way, if the format cannot express the archive."""
        ...


def load_backend(format_name: str) -> Backend:
    """Load the backend that writes a format. Raise ``UsageError`` for one that is not written from an archive."""
    folder, _, name = FORMATS[format_name].backend.partition(".")
    if not folder:
        expected = ", ".join(f.name for f in FORMATS.values() if f.backend)
        raise UsageError(
            "an archive is converted to another container", where="--to", got=format_name, expected=expected
        )
    return getattr(importlib.import_module(f"exporter.backends.{folder}.backend"), name)()

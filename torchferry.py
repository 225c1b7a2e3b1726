"""torchferry's public Python API: ``export``, ``load``, ``verify`` and the types that they speak of.

import torchferry
torchferry.export("model.i", models=["eq"], output="eq.pt")
model = torchferry.load("eq.pt")
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from exporter import __version__
from exporter import pipeline as _pipeline
from exporter.compose import ComposedModel, Part
from exporter.contract import Contract, Sampling, Signature, TensorSpec
from exporter.errors import (
    ArchiveError,
    CaptureError,
    MismatchError,
    MissingRuntimeError,
    TorchferryError,
    UsageError,
)
from exporter.pipeline import Exported
from exporter.sources.source import Listing
from runtime_checks.load import Model, load
from runtime_checks.report import Report
from runtime_checks.runners.isolated_python import IsolatedPython as _IsolatedPython
from runtime_checks.verify import verify as _verify

__all__ = [
    "ArchiveError",
    "CaptureError",
    "ComposedModel",
    "Contract",
    "Exported",
    "Listing",
    "MismatchError",
    "MissingRuntimeError",
    "Model",
    "Part",
    "Report",
    "Sampling",
    "Signature",
    "TensorSpec",
    "TorchferryError",
    "UsageError",
    "__version__",
    "export",
    "load",
    "verify",
]

TIME_LIMIT, MEMORY_LIMIT = 600.0, 16.0


def export(
    source: str | nn.Module,
    *,
    models: Sequence[str] = (),
    output: str | Path | None = None,
    renames: Sequence[str] = (),
    inputs: str | Path | Mapping[str, Any] | None = None,
    seed: int = 0,
    time_limit: float = TIME_LIMIT,
    memory_limit: float = MEMORY_LIMIT,
    announce: Callable[[Listing], Any] | None = None,
) -> list[Exported]:
    """Export models of an input file, of a Python factory, or a module; verify each file before it appears.

    The same as ``torchferry export``; a module is put into eval mode, and ``inputs`` may be a dict of example
    tensors by name. ``time_limit`` (seconds) and ``memory_limit`` (GiB) bound the process that
    verifies; ``announce`` is told name, inputs and outputs of each model before it is captured. Raises the errors of
    ``exporter.errors``.
    """
    runner = _IsolatedPython(time_limit, memory_limit * 2**30)
    return _pipeline.export(
        source,
        models=models,
        output=Path(output) if output is not None else None,
        renames=renames,
        inputs=Path(inputs) if isinstance(inputs, str) else inputs,
        seed=seed,
        verify=lambda path, final, fresh: _verify(path, fresh=fresh, runner=runner, shown_as=final),
        announce=announce or (lambda listing: None),
    )


def verify(path: str | Path, *, time_limit: float = TIME_LIMIT, memory_limit: float = MEMORY_LIMIT) -> Report:
    """Check an archive in a fresh process without its source library. Raises ``MismatchError`` or ``ArchiveError``."""
    return _verify(Path(path), runner=_IsolatedPython(time_limit, memory_limit * 2**30))

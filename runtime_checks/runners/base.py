"""The runner protocol: a runner takes calls of an archive's methods and returns their outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import torch

from exporter.archive.contract import Contract

Tensors = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Call:
    """One call of a method. Strides of the inputs are kept on the way to the runner.

    ``default_dtype`` is the one of the process, on which an archive must not depend. Inputs are moved to the runner's
    device, except the one at ``left_on_cpu``. ``moved``: by an archive that was loaded on the CPU and then moved.
    ``parameters`` have other values for this call. ``seeds``, one for each floating output, request torch's autograd
    gradients of the floating inputs, and then of the parameters ``wrt``, which follow the outputs."""

    method: str
    inputs: Tensors
    default_dtype: str = "float32"
    moved: bool = False
    left_on_cpu: int = -1
    parameters: Mapping[str, torch.Tensor] = field(default_factory=dict)
    seeds: Tensors = ()
    wrt: tuple[str, ...] = ()


@dataclass(frozen=True)
class CallResult:
    """The outputs of a call, or the error that it raised."""

    outputs: Tensors = ()
    error: str = ""


@dataclass(frozen=True)
class RunnerVerdict:
    """A runner's own check of the file; ``passed`` is None if it could not be made."""

    check: str
    passed: bool | None
    detail: str = ""


@dataclass(frozen=True)
class Run:
    """The results in the order of the calls, and the runner's evidence of the process that they ran in."""

    results: tuple[CallResult, ...]
    evidence: dict[str, object] = field(default_factory=dict)
    verdicts: tuple[RunnerVerdict, ...] = ()


class Runner(Protocol):
    """A runner of archives. Outputs come back on the CPU; an output on another device is an error of its call.

    Raises ``RunError`` if the archive does not load or the process ends, ``MissingRuntimeError`` if the
    runtime or its device is missing."""

    @property
    def name(self) -> str: ...

    @property
    def device(self) -> str: ...

    def run(self, path: Path, contract: Contract, calls: Sequence[Call]) -> Run: ...

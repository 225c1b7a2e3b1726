"""What a runner is: it takes calls of an archive's methods and returns their outputs."""

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
    ``parameters`` have other values for this call. ``seeds``, one for each floating output, ask torch's autograd for
    the gradients of the floating inputs, and then of the parameters ``by``, which come behind the outputs.
    """

    method: str
    inputs: Tensors
    default_dtype: str = "float32"
    moved: bool = False
    left_on_cpu: int = -1
    parameters: Mapping[str, torch.Tensor] = field(default_factory=dict)
    seeds: Tensors = ()
    by: tuple[str, ...] = ()


@dataclass(frozen=True)
class Result:
    """Outputs of a call, or the error that it raised."""

    outputs: Tensors = ()
    error: str = ""


@dataclass(frozen=True)
class Verdict:
    """What a runner has checked of the file itself; None where it could not."""

    check: str
    passed: bool | None
    detail: str = ""


@dataclass(frozen=True)
class Run:
    """Results in the order of the calls, and what the runner shows of the process that they ran in."""

    results: tuple[Result, ...]
    evidence: dict[str, object] = field(default_factory=dict)
    verdicts: tuple[Verdict, ...] = ()


class Runner(Protocol):
    """Outputs come back on the CPU; one that was on another device than the runner's is an error of its call.

    Raises ``RunError`` where the archive does not load or the process ends, ``MissingRuntimeError`` where the
    runtime or its device is not there.
    """

    @property
    def name(self) -> str: ...

    @property
    def device(self) -> str: ...

    def run(self, path: Path, contract: Contract, calls: Sequence[Call]) -> Run: ...

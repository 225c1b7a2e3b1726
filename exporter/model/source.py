"""A loaded model in the one form that every later stage takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from exporter.archive.contract import Finding, Origin
from exporter.archive.tensor_spec import TensorSpec, open_sizes

Inputs = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Source:
    """A model and what is known of it before it has run.

    ``module`` takes positional tensors in the order of ``inputs``, each ``(*batch, *own shape)``, and returns a
    tensor, a tuple or a dict of tensors. ``named`` is the module whose ``named_parameters`` give the contract's
    parameter names: a source may wrap what the user wrote. ``outputs`` may be empty or lack shapes;
    warmup finds them, and holds the model to them where ``declares_outputs``. ``calls`` are inputs that were recorded
    or given, with ``batch_ndim`` leading dimensions; ``default_dtype`` is the one under which the model should run.
    """

    name: str
    module: Callable[..., Any]
    named: nn.Module
    inputs: tuple[TensorSpec, ...]
    origin: Origin
    outputs: tuple[TensorSpec, ...] = ()
    declares_outputs: bool = False
    batch_ndim: int = 1
    calls: tuple[Inputs, ...] = ()
    default_dtype: torch.dtype = torch.float32
    findings: tuple[Finding, ...] = ()
    # A call asks torch's autograd for gradients: it runs with them on, and is captured with its backward pass.
    differentiates: bool = False
    # The library's own chain rule: inputs to the outputs, in order, and blocks by ``(output, input)``.
    blocks: Callable[..., tuple[Inputs, Mapping[tuple[str, str], torch.Tensor]]] | None = None

    @property
    def sizes(self) -> tuple[str, ...]:
        """Names of the open sizes."""
        return open_sizes(self.inputs)

    @property
    def varies(self) -> bool:
        """Whether two calls may differ in their shapes: by the batch, or by open sizes."""
        return bool(self.batch_ndim or self.sizes)


@dataclass(frozen=True)
class Listing:
    """What ``torchferry show`` prints of one model."""

    name: str
    kind: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    parameters: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    batch_ndim: int = 1

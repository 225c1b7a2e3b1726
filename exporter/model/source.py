"""A loaded model in the form that every later stage takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from exporter.archive.contract import Finding, Origin
from exporter.archive.metadata import Metadata
from exporter.archive.tensor_spec import TensorSpec, list_dynamic_sizes
from exporter.archive.value_structure import Structure

Inputs = tuple[torch.Tensor, ...]


def keep_all() -> None:
    """Take nothing back: the module is as its user gave it."""


@dataclass(frozen=True)
class Source:
    """A model and what is known of it before it has run.

    ``module`` takes positional tensors in the order of ``inputs``, each ``(*batch_shape, *event_shape)``, and returns a
    tensor, a tuple or a dict of tensors. ``parameter_module`` is the module whose ``named_parameters`` give the
    contract's parameter names: a source may wrap the user's module. ``outputs`` may be empty or lack shapes; warmup
    finds them, and requires them of the model where ``declares_outputs``. ``calls`` are recorded or given inputs, with
    ``batch_ndim`` leading dimensions; ``default_dtype`` is the one under which the model should run. ``per_element``
    are inputs that are parameters of the user's module, which ``take_back`` makes parameters again. ``whole_call`` are
    the given inputs in their whole shapes, of a model of which nobody has said that it has a batch; ``may_fix_sizes``:
    its open sizes were found by trying, and may as well be those of the given inputs. ``own_module`` is
    the user's own where ``module`` is made of a copy. ``metadata`` is what its author says of it,
    ``arguments`` the structure of the arguments of its own call, where some are not just tensors, and ``positional``
    how many of these go by position."""

    name: str
    module: Callable[..., Any]
    parameter_module: nn.Module
    inputs: tuple[TensorSpec, ...]
    origin: Origin
    outputs: tuple[TensorSpec, ...] = ()
    declares_outputs: bool = False
    batch_ndim: int = 1
    calls: tuple[Inputs, ...] = ()
    whole_call: Inputs = ()
    may_fix_sizes: bool = False
    default_dtype: torch.dtype = torch.float32
    findings: tuple[Finding, ...] = ()
    per_element: tuple[str, ...] = ()
    take_back: Callable[[], None] = keep_all
    # A call uses torch's autograd: it runs with gradients on, and is captured with its backward pass.
    uses_autograd: bool = False
    own_module: Callable[..., Any] | None = None
    metadata: Metadata = field(default_factory=Metadata)
    arguments: Structure = ()
    positional: int = 0
    # The library's own chain rule: from inputs to the outputs, in order, and blocks by ``(output, input)``.
    compute_jacobian_blocks: Callable[..., tuple[Inputs, Mapping[tuple[str, str], torch.Tensor]]] | None = None

    @property
    def sizes(self) -> tuple[str, ...]:
        """Return names of the dynamic sizes."""
        return list_dynamic_sizes(self.inputs)

    @property
    def size_name(self) -> str:
        """Return the name of the first size that varies: the batch, or the first dynamic size."""
        return "batch" if self.batch_ndim else self.sizes[0]

    @property
    def has_dynamic_size(self) -> bool:
        """Return whether two calls may differ in their shapes: by the batch, or by dynamic sizes."""
        return bool(self.batch_ndim or self.sizes)


@dataclass(frozen=True)
class Listing:
    """The description of one model that ``torchferry show`` prints.

    Attributes:
        name: The model's name.
        kind: Its class or type.
        inputs: Its inputs.
        outputs: Its outputs.
        parameters: Shapes of the parameters by name.
        batch_ndim: The number of batch dimensions: 1, or 0 for whole shapes.
    """

    name: str
    kind: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    parameters: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    batch_ndim: int = 1

"""The model itself, in eager mode, as something to be timed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from exporter.archive.input_files import read_inputs
from exporter.capture.autograd_detection import as_it_runs
from exporter.common.errors import UsageError
from exporter.frontends import resolve
from exporter.model.eager.derivatives import blocks
from exporter.model.eager.evaluation import evaluate


def eager(
    source: str, model: str, inputs: Path | None, outputs: Sequence[str | tuple[str, str]], threads: int
) -> Callable[[str, Sequence[torch.Tensor]], Sequence[torch.Tensor]]:
    """Calls of ``forward`` and ``jacobian``; ``outputs`` are those of the contract's method, blocks by (output, input).

    Raises ``UsageError`` for a source or a model that is not there, and for a block by a parameter.
    """
    (name,) = resolve.chosen_models(source, [model] if model else [])
    loaded = as_it_runs(resolve.load(source, name, read_inputs(inputs) if inputs else None), 0)
    for parameter in loaded.named.parameters() if not loaded.differentiates else ():
        parameter.requires_grad_(False)
    pairs = [o for o in outputs if not isinstance(o, str)]

    def call(method: str, given: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        if method not in ("forward", "jacobian"):
            raise UsageError(f"eager mode is not timed for {method!r}", where="--against", expected="forward, jacobian")
        values = list(evaluate(loaded, tuple(given)).values())
        found = blocks(loaded, tuple(given), pairs) if pairs else {}
        return [*values, *(found[pair] for pair in pairs)]

    return call

"""The model itself, in eager mode, as a candidate of a benchmark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from exporter.archive.input_files import read_inputs
from exporter.capture.autograd_detection import detect_inner_autograd
from exporter.common.errors import UsageError
from exporter.frontends import resolve
from exporter.frontends.model_request import ModelRequest
from exporter.model.eager.derivatives import compute_jacobian_blocks
from exporter.model.eager.evaluation import evaluate


def make_eager_call(
    source: str, model: str, inputs: Path | None, outputs: Sequence[str | tuple[str, str]], threads: int
) -> Callable[[str, Sequence[torch.Tensor]], Sequence[torch.Tensor]]:
    """Return a function that calls ``forward`` or ``jacobian``; ``outputs`` are the method's, blocks by (output, wrt).

    Raises ``UsageError`` for a source or a model that does not exist, and for a block by a parameter."""
    request = ModelRequest(source)
    (name,) = resolve.choose_models(request, [model] if model else [])
    model_source = detect_inner_autograd(resolve.load(request, name, read_inputs(inputs) if inputs else None), 0)
    for parameter in model_source.parameter_module.parameters() if not model_source.uses_autograd else ():
        parameter.requires_grad_(False)
    pairs = [o for o in outputs if not isinstance(o, str)]

    def call(method: str, arguments: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        if method not in ("forward", "jacobian"):
            what, expected = f"eager mode is not timed for method {method!r}", "forward, jacobian"
            raise UsageError(what, where="--against", expected=expected)
        values = list(evaluate(model_source, tuple(arguments)).values())
        jacobian_blocks = compute_jacobian_blocks(model_source, tuple(arguments), pairs) if pairs else {}
        return [*values, *(jacobian_blocks[pair] for pair in pairs)]

    return call

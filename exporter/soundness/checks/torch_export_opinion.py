"""Opinion of ``torch.export``: whether it finds one program for every batch size, and where it does not.

It traces the same code with sizes and data that have no value. Its answer is recorded beside the gate's own findings
and decides nothing: it refuses sound models (data that only reach a log), and lets hidden state pass."""

from __future__ import annotations

import re

import torch
from torch import nn

from exporter.archive.contract import Finding
from exporter.common.errors import summarize_error
from exporter.common.forking import ForkFailedError
from exporter.model.eager.evaluation import eager_context, normalize_outputs
from exporter.model.source import Inputs, Source
from exporter.soundness.check_context import EagerContext
from exporter.soundness.footprint import is_user_file

CHECK = "second opinion"


def check(context: EagerContext) -> list[Finding]:
    """Report whether ``torch.export`` captures the model."""
    return context.room(_check, context.inputs)


class _ExportWrapper(nn.Module):
    def __init__(self, source: Source) -> None:
        super().__init__()
        self.parameter_module = source.parameter_module
        self._source = source

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(normalize_outputs(self._source.module(*inputs), self._source).values())


def _check(source: Source, inputs: Inputs) -> list[Finding]:
    if not inputs:
        raise ForkFailedError("the model has no inputs")
    batch = torch.export.Dim("batch", min=2, max=1_000_000) if source.batch_ndim else None
    shapes = (tuple({0: batch} if batch is not None else {} for _ in inputs),)
    with eager_context(source):
        try:
            torch.export.export(_ExportWrapper(source), inputs, dynamic_shapes=shapes, strict=False)
        except Exception as error:
            gist = _extract_gist(str(error)) or summarize_error(error)
            what, where = f"torch.export does not capture the model: {gist}", _find_user_line(str(error))
            return [Finding(CHECK, what, where, reason="an opinion beside the gate's own checks, which decide")]
    sizes = "for every batch size from 2" if source.batch_ndim else "at these shapes"
    return [Finding(CHECK, f"torch.export captures the model as one program {sizes}", reason="it agrees")]


def _extract_gist(text: str) -> str:
    """Return the part of torch's message that names what was specialised, or which branch it could not decide."""
    for beginning in ("You marked ", "Could not guard on", "Could not extract", "- Not all values of"):
        if match := re.search(rf"{beginning}[^\n]*", text):
            return match[0].strip("- ").strip()[:300]
    return ""


def _find_user_line(text: str) -> str:
    places = re.findall(r'File "([^"]+)", line (\d+)', text)
    return next((f"{file}:{line}" for file, line in reversed(places) if is_user_file(file)), "")

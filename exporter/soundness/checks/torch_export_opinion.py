"""A second opinion from ``torch.export``: does it find one program for every batch size, and where does it not?

It follows the same code with sizes and data that have no value. What it says is written down beside the gate's own
findings and decides nothing: it refuses sound models (data that only reach a log), and lets hidden state pass.
"""

from __future__ import annotations

import re

import torch
from torch import nn

from exporter.archive.contract import Finding
from exporter.common.errors import first_line
from exporter.common.forking import NotRun, isolated
from exporter.model.eager.evaluation import flatten, inference_conditions
from exporter.model.source import Inputs, Source
from exporter.soundness.check_context import Eager
from exporter.soundness.footprint import is_users

CHECK = "second opinion"


def check(eager_mode: Eager) -> list[Finding]:
    return isolated(_check, eager_mode.source, eager_mode.inputs)


class _Whole(nn.Module):
    def __init__(self, source: Source) -> None:
        super().__init__()
        self.named = source.named
        self._source = source

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(flatten(self._source.module(*inputs), self._source).values())


def _check(source: Source, inputs: Inputs) -> list[Finding]:
    if not inputs:
        raise NotRun("the model has no inputs")
    batch = torch.export.Dim("batch", min=2, max=1_000_000) if source.batch_ndim else None
    shapes = (tuple({0: batch} if batch is not None else {} for _ in inputs),)
    with inference_conditions(source):
        try:
            torch.export.export(_Whole(source), inputs, dynamic_shapes=shapes, strict=False)
        except Exception as error:
            text = str(error)
            return [
                Finding(
                    CHECK,
                    f"torch.export does not capture the model: {_gist(text) or first_line(error)}",
                    _where(text),
                    reason="an opinion beside the gate's own checks, which decide",
                )
            ]
    sizes = "for every batch size from 2" if source.batch_ndim else "at these shapes"
    return [Finding(CHECK, f"torch.export captures the model as one program {sizes}", reason="it agrees")]


def _gist(text: str) -> str:
    """The part of torch's message that says what was specialised, or which branch was asked for."""
    for pattern in (
        r"You marked [^\n]*",
        r"Could not guard on[^\n]*",
        r"Could not extract[^\n]*",
        r"- Not all values of[^\n]*",
    ):
        found = re.search(pattern, text)
        if found:
            return found[0].strip("- ").strip()[:300]
    return ""


def _where(text: str) -> str:
    found = [f"{file}:{line}" for file, line in re.findall(r'File "([^"]+)", line (\d+)', text) if is_users(file)]
    return found[-1] if found else ""

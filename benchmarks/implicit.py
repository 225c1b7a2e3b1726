"""An implicit update, and the update with its tangents, from an archive beside eager mode, in one run on one thread.

python benchmarks/implicit.py SOURCE [MODEL]

Eager: the source library's own solver (NEML2's ``ImplicitUpdate``, where it runs; else the Newton loop of
``torchferry.ImplicitUpdate``), and its own chain rule for the tangents. Inputs are the warmup case's rows, repeated, so
that every element converges. Rounds of all ways are interleaved; medians in microseconds, and the ratio to the archive.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from jacobian import timed
from rich.console import Console
from rich.table import Table

import torchferry
from exporter.derivatives import eager
from exporter.eager import inference_conditions
from exporter.sources import neml2, resolve
from exporter.sources.source import Source
from exporter.warmup import first_run

BATCHES = (1, 100, 5_000, 100_000)


def library(text: str, name: str) -> Any:
    """NEML2's model with its own solver; None for other sources, and where that does not run."""
    if not text.endswith(".i") or not neml2.built_for_this_torch():
        return None
    with neml2._float64():
        return neml2._model(Path(text), name)[1].requires_grad_(False)


def main(text: str, name: str = "") -> None:
    name = resolve.chosen_models(text, [name] if name else [])[0]
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.pt")
        models = [name] if text.endswith(".i") else []
        (exported,) = torchferry.export(text, models=models, output=path, derivatives="all")
        model = torchferry.load(path)
    print(f"{time.perf_counter() - start:.0f} s to export, judge and verify: {exported.seconds}")
    source, own = resolve.load(text, name, None), library(text, name)
    pairs = [o for o in exported.contract.methods["jacobian"].outputs if not isinstance(o, str)]
    table = Table("batch", "iterations", "way", "us a call", "ratio", title=name)
    torch.set_num_threads(1)
    with inference_conditions(source):
        seen = first_run(source, 0).inputs
        for rows in BATCHES:
            inputs = tuple(t[torch.arange(rows) % t.shape[0]].contiguous() for t in seen)
            given = _typed(own, source, inputs)
            ways: dict[str, Callable[[], object]] = {
                "update": lambda inputs=inputs: model.module(*inputs),
                "update, eager": lambda given=given, inputs=inputs: own(*given) if own else source.module(*inputs),
                "update and tangents": lambda inputs=inputs: model.module.jacobian(*inputs),
                "update and tangents, eager": lambda inputs=inputs: tangents(source, inputs, pairs),
            }
            iterations = model.module.newton_info(*inputs)[0].double().mean()
            medians = timed(ways)
            for way, seconds in medians.items():
                ratio = seconds / medians[way.removesuffix(", eager")]
                table.add_row(str(rows), f"{iterations:.1f}", way, f"{seconds * 1e6:.0f}", f"{ratio:.2f}")
    Console().print(table)


def _typed(own: Any, source: Any, inputs: tuple[torch.Tensor, ...]) -> list[Any]:
    return list(source.module._wrapped(inputs).values()) if own else []


def tangents(source: Source, inputs: tuple[torch.Tensor, ...], pairs: list[tuple[str, str]]) -> object:
    return source.blocks(*inputs) if source.blocks else eager.blocks(source, inputs, pairs)


if __name__ == "__main__":
    main(*sys.argv[1:])

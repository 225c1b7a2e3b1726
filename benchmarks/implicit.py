"""An implicit update, and the update with its tangents, from an archive beside eager mode, in one run on one thread.

python benchmarks/implicit.py SOURCE [MODEL] [--derivative OUT:IN ...] [--compiled DIR]

Eager: the source library's own solver (NEML2's ``ImplicitUpdate``, where it runs; else the Newton loop of
``torchferry.ImplicitUpdate``), and its own chain rule for the tangents. Compiled: NEML2's own route, ``neml2-compile``,
where neml2 is built for this torch; ``--compiled`` is a folder that it wrote, or where it shall write. Inputs are the
warmup case's rows, repeated, so that every element converges. Rounds of all ways are interleaved; medians in
microseconds, and the ratio to the archive.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from jacobian import timed
from rich.console import Console
from rich.table import Table

import torchferry
from exporter.frontends import resolve
from exporter.frontends.model_request import ModelRequest
from exporter.frontends.neml2 import input_file
from exporter.model.eager import derivatives
from exporter.model.eager.evaluation import eager_context
from exporter.model.eager.warmup import run_first
from exporter.model.source import Source

BATCHES = (1, 100, 5_000, 100_000)


def library(text: str, name: str) -> Any:
    """NEML2's model with its own solver; None for other sources, and where that does not run."""
    if not text.endswith(".i") or not input_file.check_neml2_abi():
        return None
    with input_file._use_float64():
        return input_file._build_model(ModelRequest(text), name)[1].requires_grad_(False)


def compiled(text: str, name: str, pairs: Sequence[tuple[str, str]], folder: Path) -> Any:
    """What ``neml2-compile`` makes of the model; it is made where the folder does not hold it yet."""
    from neml2.aoti import Model

    if not (folder / name / "metadata.json").is_file():
        start = time.perf_counter()
        wanted = [f"{output_name}:{wrt}" for output_name, wrt in pairs]
        options = [part for pair in wanted for part in ("-d", pair)]
        tool = str(Path(sys.executable).with_name("neml2-compile"))
        subprocess.run([tool, text, "--model", name, "--output-dir", str(folder), "-q", *options], check=True)
        print(f"{time.perf_counter() - start:.0f} s to compile with neml2-compile")
    return Model(str(folder / name))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("source")
    parser.add_argument("model", nargs="?", default="")
    parser.add_argument("--derivative", action="append", default=[])
    parser.add_argument("--compiled", type=Path)
    parser.add_argument("--batches", type=int, nargs="*", default=BATCHES)
    arguments = parser.parse_args()
    text = arguments.source
    name = resolve.choose_models(ModelRequest(text), [arguments.model] if arguments.model else [])[0]
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.pt")
        models = [name] if text.endswith(".i") else []
        (exported,) = torchferry.export(text, models=models, output=path, derivatives=arguments.derivative or "all")
        model = torchferry.load(path)
    stages = ", ".join(f"{stage} {seconds:.0f}" for stage, seconds in exported.seconds.items())
    print(f"{time.perf_counter() - start:.0f} s to export, judge and verify: {stages}")
    source, own = resolve.load(ModelRequest(text), name, None), library(text, name)
    pairs = [o for o in exported.contract.methods["jacobian"].outputs if not isinstance(o, str)]
    theirs = compiled(text, name, pairs, arguments.compiled) if own and arguments.compiled else None
    table = Table("batch", "iterations", "way", "us a call", "ratio", title=name)
    torch.set_num_threads(1)
    with eager_context(source):
        seen = run_first(source, 0).inputs
        for rows in arguments.batches:
            inputs = tuple(t[torch.arange(rows) % t.shape[0]].contiguous() for t in seen)
            raw: Any = source.module
            values = list(raw._wrapped(inputs).values()) if own else []
            ways: dict[str, Callable[[], object]] = {
                "update": lambda inputs=inputs: model.module(*inputs),
                "update, eager": lambda values=values, inputs=inputs: own(*values) if own else source.module(*inputs),
                "update and tangents": lambda inputs=inputs: model.module.jacobian(*inputs),
                "update and tangents, eager": lambda inputs=inputs: tangents(source, inputs, pairs),
            }
            if theirs:
                named = dict(zip((s.name for s in source.inputs), inputs, strict=True))
                taken = {n: named[n] for n in theirs.input_names}
                ways["update, compiled"] = lambda taken=taken: theirs.forward(taken)
                ways["update and tangents, compiled"] = lambda taken=taken: theirs.jacobian(taken)
            iterations = model.module.newton_info(*inputs)[0].double().mean()
            medians = timed(ways)
            for way, seconds in sorted(medians.items()):
                ratio = seconds / medians[way.partition(",")[0]]
                table.add_row(str(rows), f"{iterations:.1f}", way, f"{seconds * 1e6:.0f}", f"{ratio:.2f}")
    Console(width=100).print(table)


def tangents(source: Source, inputs: tuple[torch.Tensor, ...], pairs: Sequence[tuple[str, str]]) -> object:
    return (
        source.compute_jacobian_blocks(*inputs)
        if source.compute_jacobian_blocks
        else derivatives.compute_jacobian_blocks(source, inputs, pairs)
    )


if __name__ == "__main__":
    main()

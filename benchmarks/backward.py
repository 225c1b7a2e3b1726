"""A function that takes gradients itself, from an archive, beside eager mode, in one run.

python benchmarks/backward.py examples/train_step.py:loss_and_grad

One thread; rounds of both ways are interleaved; the median of each is printed, in microseconds and as a ratio to the
archive. The first open size goes through ``SIZES``.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch
from jacobian import timed
from rich.console import Console
from rich.table import Table

import torchferry
from exporter.capture.autograd_detection import detect_inner_autograd
from exporter.frontends import resolve
from exporter.frontends.model_request import ModelRequest
from exporter.model.eager.evaluation import eager_context
from exporter.model.eager.input_sampling import InputSampler

SIZES = (1, 100, 10_000)


def main(text: str) -> None:
    (name,) = resolve.choose_models(ModelRequest(text), [])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.pt")
        torchferry.export(text, output=path)
        model = torchferry.load(path)
    source = detect_inner_autograd(resolve.load(ModelRequest(text), name, None), 0)
    sampler = InputSampler(model.contract.inputs, source.batch_ndim, None)
    table = Table("size", "way", "us a call", "ratio to the archive", title=name)
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    for size in SIZES:
        inputs = sampler.draw(size, generator)

        def archive(inputs: tuple[torch.Tensor, ...] = inputs) -> object:
            with torch.inference_mode():
                return model.module(*inputs)

        def eager(inputs: tuple[torch.Tensor, ...] = inputs) -> object:
            return source.module(*inputs)

        with eager_context(source):
            medians = timed({"archive": archive, "eager": eager})
        for way, seconds in medians.items():
            table.add_row(str(size), way, f"{seconds * 1e6:.1f}", f"{seconds / medians['archive']:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main(*sys.argv[1:])

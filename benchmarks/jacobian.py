"""Outputs and Jacobian from an archive, beside eager mode's and finite differences, in one run.

python benchmarks/jacobian.py SOURCE [MODEL]

Eager: the source library's own chain rule where it has one, and backward passes of torch. Differences: forward ones of
the archive's ``forward``, as a solver without a Jacobian makes them, by hand and one call for each component. Rounds of
all ways are interleaved; the median of each is printed, in microseconds and as a ratio to the archive.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

import torchferry
from exporter.frontends import resolve
from exporter.frontends.model_request import ModelRequest
from exporter.model.eager import derivatives
from exporter.model.eager.evaluation import eager_context
from runtime_checks.model import Model

BATCHES = (1, 100, 10_000)
SECONDS = 3.0


def differences(model: Model, inputs: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    """Forward differences, a call of ``forward`` for each component of each input."""
    base = model.module(*inputs)
    result = []
    for position, value in enumerate(inputs):
        flat = value.reshape(value.shape[0], -1)
        for k in range(flat.shape[1]):
            moved = flat.clone()
            step = 1.5e-8 * moved[:, k].abs().clamp(min=1e-3)
            moved[:, k] += step
            arguments = [moved.reshape(value.shape) if i == position else t for i, t in enumerate(inputs)]
            above = model.module(*arguments)
            result += [(a - b) / step.reshape(-1, *[1] * (a.ndim - 1)) for a, b in zip(above, base, strict=True)]
    return result


def main(text: str, name: str = "") -> None:
    name = resolve.choose_models(ModelRequest(text), [name] if name else [])[0]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.pt")
        models = [name] if text.endswith(".i") else []
        (exported,) = torchferry.export(text, models=models, output=path, derivatives="all")
        model = torchferry.load(path)
    source = resolve.load(ModelRequest(text), name, None)
    contract = exported.contract
    pairs = [o for o in contract.methods["jacobian"].outputs if not isinstance(o, str)]
    table = Table(
        "batch", "way", "us a call", "ratio to the archive", title=f"{name}: {contract.methods['jacobian'].how}"
    )
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    for rows in BATCHES:
        inputs = tuple(
            (1 + torch.rand((rows, *s.static_shape), generator=generator, dtype=torch.float64)).to(
                getattr(torch, s.dtype)
            )
            for s in contract.inputs
        )
        ways: dict[str, Callable[[], object]] = {
            "archive": lambda inputs=inputs: model.module.jacobian(*inputs),
            "archive, forward alone": lambda inputs=inputs: model.module(*inputs),
            "finite differences of the archive": lambda inputs=inputs: differences(model, inputs),
            "eager, backward passes": lambda inputs=inputs: derivatives.compute_jacobian_blocks(source, inputs, pairs),
        }
        chain_rule = source.compute_jacobian_blocks
        if chain_rule is not None:
            ways["eager, the library's chain rule"] = lambda inputs=inputs, chain_rule=chain_rule: chain_rule(*inputs)
        with eager_context(source):
            medians = timed(ways)
        for way, seconds in medians.items():
            table.add_row(str(rows), way, f"{seconds * 1e6:.1f}", f"{seconds / medians['archive']:.2f}")
    Console().print(table)


def timed(ways: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Medians, by rounds in which each way runs once."""
    for run in ways.values():
        for _ in range(3):
            run()
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    end = time.perf_counter() + SECONDS
    while time.perf_counter() < end or min(map(len, seconds.values())) < 5:
        for way, run in ways.items():
            start = time.perf_counter()
            run()
            seconds[way].append(time.perf_counter() - start)
    return {way: statistics.median(values) for way, values in seconds.items()}


if __name__ == "__main__":
    main(*sys.argv[1:])

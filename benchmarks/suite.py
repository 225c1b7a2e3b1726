"""How fast archives are, in one run: ``make bench`` writes benchmarks/results.md.

Rates, a Perzyna residual and its Jacobian, a small network and an implicit update; each in eager mode, as a plain
trace, traced and frozen, as a torchferry ``.pt``, as ``.pt2`` and in onnxruntime, and the rates by hand in C++ as well.
One thread. A plain trace of the implicit update would fix its iterations, so there is none.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import torchferry
from exporter.capture.autograd_detection import detect_inner_autograd
from exporter.frontends import resolve
from exporter.frontends.model_request import ModelRequest
from runtime_checks import containers
from runtime_checks.bench.benchmark import BenchmarkOptions, BenchmarkResult, describe_machine, run_benchmark
from runtime_checks.bench.candidates import Candidate
from runtime_checks.bench.report import format_time
from torchferry.eager_reference import make_eager_call

ROOT = Path(__file__).parents[1]
BATCHES = (1, 100, 1_000, 10_000, 100_000, 300_000)
Call = Callable[[str, Sequence[torch.Tensor]], Sequence[torch.Tensor]]


@dataclass(frozen=True)
class Model:
    """``source`` and ``model`` as export takes them; ``traced``: a plain trace computes the same."""

    title: str
    source: str
    model: str = ""
    method: str = "forward"
    derivative: str = ""
    traced: bool = True
    by_hand: str = ""
    batches: tuple[int, ...] = BATCHES


SUITE = (
    Model("rates", f"{ROOT}/examples/rates/model.i", "eq", by_hand="rates"),
    Model("Perzyna residual", f"{ROOT}/examples/perzyna/model.i", "residual", derivative="stress_residual:stress"),
    Model(
        "its Jacobian",
        f"{ROOT}/examples/perzyna/model.i",
        "residual",
        "jacobian",
        "stress_residual:stress",
        batches=(1, 100, 1_000, 10_000, 100_000),
    ),
    Model("network", f"{ROOT}/benchmarks/network.py:make_model"),
    Model(
        "implicit update",
        f"{ROOT}/examples/return_map.py:make_model",
        traced=False,
        batches=(1, 100, 1_000, 10_000, 100_000),
    ),
)


def traced(model: Model, frozen: bool, threads: int) -> Call:
    """What a user has who calls torch.jit.trace, and torch.jit.freeze."""
    request = ModelRequest(model.source)
    name = resolve.choose_models(request, [model.model] if model.model else [])[0]
    source = detect_inner_autograd(resolve.load(request, name, None), 0)
    for parameter in source.parameter_module.parameters():
        parameter.requires_grad_(False)
    spec = [torch.rand(8, *s.static_shape, dtype=getattr(torch, s.dtype)) for s in source.inputs]
    output, _, wrt = model.derivative.partition(":")

    class Run(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = source.module

        def forward(self, *inputs: torch.Tensor):
            if model.method == "jacobian":
                assert source.compute_jacobian_blocks is not None
                outputs, result = source.compute_jacobian_blocks(*inputs)
                return (*outputs, result[output, wrt])
            result = self.inner(*inputs)
            return tuple(result.values()) if isinstance(result, dict) else result

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module: Any = torch.jit.trace(Run().eval(), tuple(spec), check_trace=False)
        module = torch.jit.freeze(module) if frozen else module

    def call(method: str, inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        result = module(*inputs)
        return result if isinstance(result, (tuple, list)) else (result,)

    return call


def by_hand(name: str, folder: Path, threads: int) -> Call:
    library = folder / f"{name}.so"
    if not library.exists():
        source = Path(__file__).with_name(f"{name}.cpp")
        subprocess.run(["g++", "-O3", "-march=native", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    function = getattr(ctypes.CDLL(str(library)), name)

    def call(method: str, inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        outputs = [torch.empty_like(inputs[0]) for _ in range(3)]
        ins, outs = ((ctypes.c_void_p * len(v))(*(t.data_ptr() for t in v)) for v in (inputs, outputs))
        function(ctypes.c_long(inputs[0].numel()), ins, outs)
        return outputs

    return call


def files(model: Model, folder: Path) -> list[Path]:
    """The archive and its containers; models that share an archive share them."""
    stem = folder / f"{Path(model.source.partition(':')[0]).parent.name}_{model.model or 'model'}"
    paths = [Path(f"{stem}.{suffix}") for suffix in ("pt", "onnx", "pt2")]
    if not paths[0].exists():
        chosen = [model.model] if model.model else []
        torchferry.export(model.source, models=chosen, output=paths[0], derivatives=model.derivative or ())
        for path, kind in zip(paths[1:], ("onnx", "pt2"), strict=True):
            torchferry.convert(paths[0], path, to=kind)
    return paths


def measured(model: Model, folder: Path, batches: Sequence[int]) -> BenchmarkResult:
    paths = files(model, folder)
    outputs = containers.open_container(paths[0]).contract.methods[model.method].outputs
    others = [Candidate("eager", functools.partial(make_eager_call, model.source, model.model, None, outputs))]
    if model.traced:
        others += [
            Candidate("plain trace", functools.partial(traced, model, False)),
            Candidate("trace and freeze", functools.partial(traced, model, True)),
        ]
    if model.by_hand:
        others.append(Candidate("C++ by hand", functools.partial(by_hand, model.by_hand, folder)))
    return run_benchmark(paths, BenchmarkOptions(model.method, batches), others=others)


def section(model: Model, result: BenchmarkResult) -> list[str]:
    """A table of times, then of ratios to the ``.pt``."""
    names = {label: label.partition(" (")[0] for label in result.candidates}
    first = result.candidates[0]
    heads = " | ".join(f"{b:,}" for b in result.batches)
    lines = [
        f"## {model.title}: `{model.method}`",
        "",
        f"| a call | {heads} |",
        "| --- |" + " ---: |" * len(result.batches),
    ]
    for label in result.candidates:
        cells = [format_time(t.median) if (t := result.find_timing(label, b)) else "-" for b in result.batches]
        lines.append(f"| {names[label]} | {' | '.join(cells)} |")
    bound = [format_time(result.bounds[b]) for b in result.batches]
    lines += [f"| memory traffic alone | {' | '.join(bound)} |", ""]
    lines += [f"| times the `.pt`'s speed | {heads} |", "| --- |" + " ---: |" * len(result.batches)]
    for label in result.candidates[1:]:
        pairs = [(result.find_timing(first, b), result.find_timing(label, b)) for b in result.batches]
        cells = [f"{item.median / other.median:.2f}" if item and other else "-" for item, other in pairs]
        lines.append(f"| {names[label]} | {' | '.join(cells)} |")
    lines += [
        "",
        "| in a fresh process | load | call 1 | calls 2 to 5 | MiB at the largest batch |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for item in result.colds:
        if item.error:
            lines.append(f"| {names[item.candidate]} | {item.error} | | | |")
            continue
        later = ", ".join(f"{ms:.3g}" for ms in item.calls[1:])
        peak = f"{item.peaks[max(item.peaks)]:.0f}" if item.peaks else ""
        lines.append(f"| {names[item.candidate]} | {item.load:.3g} ms | {item.calls[0]:.3g} ms | {later} ms | {peak} |")
    return [*lines, "", *result.notes, ""]


def targets(results: dict[str, BenchmarkResult]) -> list[str]:
    """What the project aims at, each a ratio of this run."""

    def ratio(title: str, other: str, batch: int) -> float | None:
        result = results[title]
        label = next((c for c in result.candidates if c.startswith(other)), "")
        item, two = result.find_timing(result.candidates[0], batch), result.find_timing(label, batch)
        return two.median / item.median if item and two else None

    rows = []
    for title, result in results.items():
        largest = max(result.batches)
        aims = [
            ("eager at 1", ratio(title, "eager", 1), 10.0),
            ("trace and freeze at 1", ratio(title, "trace and freeze", 1), 1.0),
            (f"trace and freeze at {largest:,}", ratio(title, "trace and freeze", largest), 2.0),
            ("onnxruntime at 1", ratio(title, "onnxruntime", 1), 1.0),
            (f"onnxruntime at {largest:,}", ratio(title, "onnxruntime", largest), 1.0),
        ]
        for name, value, aim in aims:
            if value is not None:
                rows.append(f"| {title} | {name} | {value:.2f} | {aim:g} | {'met' if value >= aim else 'missed'} |")
        for batch in (1, largest):
            value = ratio(title, "torchferry .pt2", batch)
            item = result.find_timing(result.candidates[0], batch)
            if value is not None and item is not None:
                bound = item.median / result.bounds[batch]
                rows.append(f"| {title} | `.pt2` at {batch:,} | {value:.2f} | | {bound:.1f} times the memory traffic |")
    return ["| model | the `.pt` beside | times as fast | aim | |", "| --- | --- | ---: | ---: | --- |", *rows, ""]


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("-o", "--output", type=Path, default=Path(__file__).with_name("results.md"))
    asked.add_argument("--only", default="")
    asked.add_argument("--largest", type=int, default=10**9)
    asked.add_argument("--files", type=Path, help="a folder to keep the files in")
    arguments = asked.parse_args()
    start, before = time.perf_counter(), describe_machine()
    results: dict[str, BenchmarkResult] = {}
    lines: list[str] = []
    with tempfile.TemporaryDirectory(prefix="torchferry-") as temporary:
        folder = arguments.files or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for model in SUITE:
            if arguments.only not in model.title:
                continue
            result = measured(model, folder, [b for b in model.batches if b <= arguments.largest])
            results[model.title] = result
            lines += section(model, result)
            print("\n".join(section(model, result)), flush=True)
    message = ", ".join(f"{k} {v}" for k, v in before.items())
    head = [
        "# Speed",
        "",
        f"Written by `make bench` in {time.perf_counter() - start:.0f} s; one thread; medians of rounds in which each "
        f"candidate has its turn. Before it began: {message}. A copy moves "
        f"{next(iter(results.values())).bandwidth / 1e9:.1f} GB/s.",
        "",
    ]
    arguments.output.write_text("\n".join([*head, *targets(results), *lines]).rstrip() + "\n")
    print(f"wrote {arguments.output}")


if __name__ == "__main__":
    main()

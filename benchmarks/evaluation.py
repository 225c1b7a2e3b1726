"""``torchferry evaluate`` from Zarr to Zarr beside the bare kernel in memory, in one run, on all cores.

python benchmarks/evaluation.py [--sizes 1e4,1e5,1e6,1e7] [--folder FOLDER] [-o plot.svg]

The model is ``hardening`` (by_hand/hardening.i), its kernel in C, with a step from rest as inputs. ``kernel`` calls the
kernel on arrays of a chunk that lie in memory, in as many threads as there are cores. ``evaluate`` reads chunks from a
store, computes, and writes them into another: elements a second of its work alone, and of the whole command with its
start. ``Zarr`` is what the same stores take without a model: inputs are read, and numbers like the outputs written, by
Zarr alone in as many threads. A folder on a disk with room is needed: about 110 bytes for each element.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy
import zarr as zarr_package
from rich.console import Console
from rich.table import Table

import torchferry
from exporter.common.schedulers import THREADS_PER_CORE
from runtime_checks.kernels.numpy_kernel import Kernel

# Its stubs do not know what a group holds.
zarr: Any = zarr_package
HARDENING = Path(__file__).with_name("by_hand") / "hardening.i"
CHUNK = 2**18
SIX = ("strain", "strain~1", "stress", "stress~1")
SCALARS = ("t", "t~1", "equivalent_plastic_strain", "equivalent_plastic_strain~1")
# Outputs, and inputs whose numbers are as hard to make smaller.
OUTPUTS: dict[str, tuple[int, ...]] = {"stress": (6,), "equivalent_plastic_strain": ()}
OUTPUTS_LIKE = {"stress": "strain", "equivalent_plastic_strain": "t"}
SHAPES: dict[str, tuple[int, ...]] = {**dict.fromkeys(SIX, (6,)), **dict.fromkeys(SCALARS, ())}
SIZES = "1e4,1e5,1e6,1e7"


def make_inputs(rows: int) -> dict[str, numpy.ndarray]:
    """Make a step from rest, elastic and plastic."""
    random = numpy.random.default_rng(3)
    values = {name: numpy.zeros((rows, *shape)) for name, shape in SHAPES.items()}
    values["strain"][:] = 5e-3 * (2 * random.random((rows, 6)) - 1)
    values["t"][:] = 1.0
    return values


def write_data(path: Path, size: int) -> None:
    """Write a store of ``size`` elements, chunk by chunk."""
    shutil.rmtree(path, ignore_errors=True)
    group = zarr.create_group(path)
    values = make_inputs(min(CHUNK, size))
    for name, own in SHAPES.items():
        chunks = (min(CHUNK, size), *own)
        names = ["point", *(f"{name}_{k}" for k in range(len(own)))]
        # Random numbers do not get smaller; states at rest do.
        codec: Any = None if name == "strain" else zarr.codecs.BloscCodec(cname="lz4", clevel=1)
        array = group.create_array(
            name, shape=(size, *own), chunks=chunks, dtype="f8", dimension_names=names, compressors=codec
        )
        for start in range(0, size, CHUNK):
            array[start : start + CHUNK] = values[name][: size - start]


def time_kernel(path: Path, size: int, jobs: int) -> float:
    """Return the seconds of the bare kernel for ``size`` elements, in several threads."""
    rows = min(CHUNK, size)
    kernels = [Kernel(path) for _ in range(jobs)]
    values = [make_inputs(rows) for kernel in kernels]
    for kernel, inputs in zip(kernels, values, strict=True):
        kernel.call("forward", inputs)
    counts = [len(range(j, -(-size // rows), jobs)) for j in range(jobs)]

    def work(j: int) -> None:
        for _ in range(counts[j]):
            kernels[j].call("forward", values[j])

    with ThreadPoolExecutor(jobs) as pool:
        start = time.perf_counter()
        list(pool.map(work, range(jobs)))
        return (time.perf_counter() - start) * size / (sum(counts) * rows)


def time_zarr(data: Path, output: Path, size: int, jobs: int) -> float:
    """Return the seconds that Zarr takes to read the inputs and to write as much as the outputs."""
    shutil.rmtree(output, ignore_errors=True)
    source, target = zarr.open_group(data, mode="r"), zarr.create_group(output)
    rows = min(CHUNK, size)
    for name, own in OUTPUTS.items():
        codec = zarr.codecs.BloscCodec(cname="lz4", clevel=1)
        shape, chunks = (size, *own), (rows, *own)
        target.create_array(name, shape=shape, chunks=chunks, dtype="f8", compressors=codec)

    def work(start: int) -> None:
        chunk = slice(start, start + rows)
        values = {name: source[name][chunk] for name in SHAPES}
        for name, like in OUTPUTS_LIKE.items():
            target[name][chunk] = values[like]

    with ThreadPoolExecutor(jobs * THREADS_PER_CORE) as pool:
        start = time.perf_counter()
        list(pool.map(work, range(0, size, rows)))
        seconds = time.perf_counter() - start
    shutil.rmtree(output)
    return seconds


def time_evaluation(kernel: Path, data: Path, output: Path) -> tuple[float, float, float]:
    """Return the seconds of the work alone and of the whole command, and its largest memory in GB."""
    shutil.rmtree(output, ignore_errors=True)
    start = time.perf_counter()
    torchferry.evaluate_to_file(kernel, data, output)
    inner = time.perf_counter() - start
    shutil.rmtree(output)
    command = [sys.executable, "-m", "exporter", "evaluate", str(kernel), str(data), "-o", str(output), "--json"]
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} has ended with {status >> 8}")
    whole = time.perf_counter() - start
    shutil.rmtree(output)
    return inner, whole, usage.ru_maxrss / 1e6


def main() -> None:
    """Time each size and print the table."""
    parser = argparse.ArgumentParser(description="Time an evaluation beside the bare kernel.")
    parser.add_argument("--sizes", default=SIZES, help="numbers of elements")
    parser.add_argument("--folder", type=Path, help="a folder for the data")
    parser.add_argument("-o", "--output", type=Path, help="a picture")
    arguments = parser.parse_args()
    jobs = len(os.sched_getaffinity(0))
    titles = ("elements", "kernel, M/s", "Zarr, M/s", "evaluate, M/s", "of the kernel", "of Zarr", "command, s", "GB")
    table = Table(*titles)
    rows = []
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        kernel = folder / "hardening"
        examples = make_inputs(32)
        torchferry.export(str(HARDENING), models=["update"], output=kernel, formats="c", inputs=examples)
        for size in map(int, map(float, arguments.sizes.split(","))):
            write_data(folder / "data.zarr", size)
            bare = time_kernel(kernel, size, jobs)
            copied = time_zarr(folder / "data.zarr", folder / "out.zarr", size, jobs)
            inner, whole, memory = time_evaluation(kernel, folder / "data.zarr", folder / "out.zarr")
            rows.append((size, size / bare, size / copied, size / inner))
            table.add_row(
                f"{size:,}",
                f"{size / bare / 1e6:.2f}",
                f"{size / copied / 1e6:.2f}",
                f"{size / inner / 1e6:.2f}",
                f"{bare / inner:.2f}",
                f"{copied / inner:.2f}",
                f"{whole:.1f}",
                f"{memory:.2f}",
            )
    Console().print(table)
    if arguments.output:
        draw(rows, arguments.output)


def draw(rows: list[tuple[int, float, float, float]], path: Path) -> None:
    """Draw elements a second over the number of elements."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 3.6), layout="constrained")
    axes = figure.subplots()
    sizes, bare, copied, evaluated = zip(*rows, strict=True)
    axes.loglog(sizes, bare, "o-", label="kernel in memory")
    axes.loglog(sizes, copied, "^-", label="Zarr alone")
    axes.loglog(sizes, evaluated, "s-", label="evaluate, Zarr to Zarr")
    axes.set(xlabel="elements", ylabel="elements a second")
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(path)


if __name__ == "__main__":
    main()

"""Kernels on a GPU beside what else runs the same model there and on the CPU; medians, in nanoseconds of an element.

python benchmarks/gpu_kernels.py prepare FOLDER    exports the models, on a machine that has NEML2
python benchmarks/gpu_kernels.py run FOLDER        times them, on a machine that has a GPU and nvcc

``kernel`` is called with the numbers of neighbouring elements side by side, ``rows`` with those of an element side by
side, ``fmad`` as ``kernel``, with products contracted into sums. ``vectors``, ``tuned`` and ``one equation`` are
written by hand for the model ``hardening`` (by_hand/hardening.cu). ``.pt`` is the archive on the GPU; ``C`` is the
kernel in C on the CPU, with a thread of OpenMP for each core. Every way is held against the archive on the CPU first.
Times are those of the device, between two events; of a batch of 1, those of the host that waits for each call.
"""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import json
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from kernels import HARDENING, HERE, SOURCES, inputs, show

import torchferry
from exporter.archive import kernel_container
from runtime_checks.engines.cuda_kernel import make_device_arrays
from runtime_checks.kernels import compilation
from runtime_checks.kernels.ctypes_library import make_arrays
from runtime_checks.kernels.gpu_compilation import make_nvcc

BATCHES = (1, 1_000, 10_000, 100_000, 1_000_000)
ROUNDS, SECONDS = 5, 0.05
# An implicit archive takes a second for this batch.
LARGEST_OF_ARCHIVE = 100_000
F = torch.float64
# A call of a way, over arrays that are ready.
Way = Callable[[], Any]


def prepare(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, (source, model) in SOURCES.items():
        examples: Any = dict(zip(HARDENING, inputs(name, HARDENING, 32), strict=True)) if model else None
        models, path = [model] if model else [], folder / f"{name}.pt"
        torchferry.export(source, models=models, output=path, inputs=examples, formats="pt,cuda")


def build_for_gpu(sources: Mapping[str, bytes], *, contracted: bool) -> ctypes.CDLL:
    nvcc = make_nvcc("sm_{}{}".format(*torch.cuda.get_device_capability()))
    flags = tuple(f.replace("-fmad=false", "-fmad=true") if contracted else f for f in nvcc.flags)
    toolchain = dataclasses.replace(nvcc, flags=flags)
    return ctypes.CDLL(str(compilation.compile_kernel(sources, toolchain)))


def build_with_openmp(sources: Mapping[str, bytes]) -> ctypes.CDLL:
    toolchain = dataclasses.replace(compilation.C_COMPILER, flags=(*compilation.FLAGS, "-fopenmp"))
    return ctypes.CDLL(str(compilation.compile_kernel(sources, toolchain)))


def lay_side_by_side(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy on the GPU whose strides over the batch are 1."""
    return tensor.cuda().t().contiguous().t() if tensor.dim() == 2 else tensor.cuda()


def by_kernel(
    library: ctypes.CDLL, name: str, tensors: list[torch.Tensor], shapes: list[tuple[int, ...]], lay: Any
) -> Way:
    function = getattr(library, f"{name}_cuda_forward")
    size = getattr(library, f"{name}_cuda_forward_workspace")
    size.restype = ctypes.c_size_t
    rows = len(tensors[0])
    taken = [lay(t) for t in tensors]
    outputs = [lay(torch.full((rows, *shape), torch.nan, dtype=F)) for shape in shapes]
    status = torch.full((rows,), -1, dtype=torch.int32, device="cuda")
    workspace = torch.empty(size() + 64, dtype=torch.uint8, device="cuda")
    arrays = make_device_arrays(taken, True), make_device_arrays(outputs, True)
    pointers = [ctypes.c_void_p(t.data_ptr()) for t in (status, workspace)]

    def call() -> list[torch.Tensor]:
        code = function(ctypes.c_ssize_t(rows), *arrays, None, *pointers, None)
        assert code == 0, code
        return outputs

    # What has the addresses lives as long as the call.
    call.__dict__["kept"] = taken, outputs, status, workspace
    return call


def by_hand(function: Any, tensors: list[torch.Tensor]) -> Way:
    rows = len(tensors[0])
    taken = [lay_side_by_side(t) for t in tensors]
    outputs = [lay_side_by_side(torch.full(shape, torch.nan, dtype=F)) for shape in ((rows, 6), (rows,))]
    places = [(ctypes.c_void_p * len(ts))(*[t.data_ptr() for t in ts]) for ts in (taken, outputs)]

    def call() -> list[torch.Tensor]:
        assert function(ctypes.c_long(rows), *places) == 0
        return outputs

    call.__dict__["kept"] = taken, outputs
    return call


def by_archive(path: Path, tensors: list[torch.Tensor]) -> Way:
    model = torchferry.load(path, device="cuda")
    taken = [t.cuda() for t in tensors]

    def call() -> Any:
        with torch.inference_mode():
            return model.module.forward(*taken)

    return call


def by_cpu(library: ctypes.CDLL, name: str, tensors: list[torch.Tensor], shapes: list[tuple[int, ...]]) -> Way:
    function, rows = getattr(library, f"{name}_forward"), len(tensors[0])
    taken, outputs = [t.numpy() for t in tensors], [torch.empty((rows, *s), dtype=F) for s in shapes]
    arrays = make_arrays(taken, True), make_arrays([o.numpy() for o in outputs], True)

    def call() -> list[torch.Tensor]:
        assert function(ctypes.c_ssize_t(rows), *arrays, None, None, None) == 0
        return outputs

    call.__dict__["kept"] = taken, outputs
    return call


def measure(way: str, call: Way, rows: int) -> float:
    """Return the seconds of a call."""
    if way == "C" or rows == 1:
        start, count = time.perf_counter(), 0
        while time.perf_counter() - start < SECONDS or count == 0:
            call()
            torch.cuda.synchronize()
            count += 1
        return (time.perf_counter() - start) / count
    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start = time.perf_counter()
    call()
    torch.cuda.synchronize()
    count = max(1, min(500, int(SECONDS / (time.perf_counter() - start))))
    first.record()
    for _ in range(count):
        call()
    last.record()
    torch.cuda.synchronize()
    return first.elapsed_time(last) / 1e3 / count


def hold(way: str, got: Any, expected: Any) -> None:
    for value, reference in zip(got, expected, strict=True):
        largest = float(reference.abs().max())
        torch.testing.assert_close(
            value.cpu(), reference, rtol=1e-6, atol=1e-6 * largest, msg=f"{way} has other numbers"
        )


def list_ways(name: str, folder: Path) -> tuple[Any, Callable[[list[torch.Tensor]], dict[str, Way]]]:
    path = folder / f"{name}.pt"
    archive = torchferry.load(path)
    opened = kernel_container.read(path.with_suffix(""))
    shapes = [tuple(int(n) for n in s.static_shape) for s in archive.contract.outputs]
    plain, contracted = (build_for_gpu(opened.cuda_sources(), contracted=c) for c in (False, True))
    on_cpu = build_with_openmp(opened.sources())
    references = {}
    if name == "hardening":
        hand = build_for_gpu({"hardening.cu": (HERE / "hardening.cu").read_bytes()}, contracted=True)
        columns = {"vectors": "by_hand_vectors", "tuned": "by_hand_tuned", "one equation": "by_hand_scalar"}
        references = {column: hand[function] for column, function in columns.items()}

    def make(tensors: list[torch.Tensor]) -> dict[str, Way]:
        ways = {"kernel": by_kernel(plain, opened.name, tensors, shapes, lay_side_by_side)}
        ways["rows"] = by_kernel(plain, opened.name, tensors, shapes, lambda t: t.cuda())
        ways["fmad"] = by_kernel(contracted, opened.name, tensors, shapes, lay_side_by_side)
        ways |= {column: by_hand(function, tensors) for column, function in references.items()}
        if len(tensors[0]) <= LARGEST_OF_ARCHIVE:
            ways[".pt"] = by_archive(path, tensors)
        ways["C"] = by_cpu(on_cpu, opened.name, tensors, shapes)
        return ways

    return archive, make


def build_all(folder: Path) -> None:
    """Build everything once, side by side: ptxas takes seconds over each."""
    opened = [kernel_container.read(folder / name) for name in SOURCES]
    with ThreadPoolExecutor() as pool:
        jobs = [pool.submit(build_for_gpu, o.cuda_sources(), contracted=c) for o in opened for c in (False, True)]
        for job in jobs:
            job.result()


def run(folder: Path) -> None:
    build_all(folder)
    results: dict[str, Any] = {"gpu": torch.cuda.get_device_name(), "cores": os.cpu_count(), "torch": torch.__version__}
    for name in SOURCES:
        archive, make = list_ways(name, folder)
        names = archive.contract.methods["forward"].inputs
        table: dict[str, dict[int, float]] = {}
        for rows in BATCHES:
            tensors = inputs(name, names, rows)
            expected = archive.module.forward(*tensors)
            ways = make(tensors)
            for way, call in ways.items():
                hold(f"{name}, {way}", call(), expected)
            times: dict[str, list[float]] = {way: [] for way in ways}
            for _ in range(ROUNDS):
                for way, call in ways.items():
                    times[way].append(measure(way, call, rows))
            for way, seconds in times.items():
                table.setdefault(way, {})[rows] = statistics.median(seconds) / rows * 1e9
        results[name] = table
        show(name, table, BATCHES, "ns")
    (folder / "gpu_kernels.json").write_text(json.dumps(results, indent=1) + "\n")


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("what", choices=("prepare", "run"))
    asked.add_argument("folder", type=Path)
    arguments = asked.parse_args()
    if arguments.what == "run" and subprocess.run(["nvidia-smi", "-L"], check=False, capture_output=True).returncode:
        raise SystemExit("there is no GPU here: nothing was timed")
    {"prepare": prepare, "run": run}[arguments.what](arguments.folder)


if __name__ == "__main__":
    main()

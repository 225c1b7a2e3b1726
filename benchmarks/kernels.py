"""Kernels beside what else runs the same model, in one run on one thread; medians, in microseconds of an element.

python benchmarks/kernels.py [-o plot.svg] [--only NAME] [--without-compiled]

The models have references in C++ that are written by hand, and compiled with the kernel's own flags: ``return_map``
and ``hardening`` are Newton loops of seven unknowns, ``radial_return`` is explicit. ``by hand`` takes one element
after the other; ``vectors`` takes eight at once, with exchanges of rows and any exponent, ``tuned`` without exchanges
and with the exponent known, ``one equation`` is what a textbook makes of the model (by_hand/hardening_vectors.cpp).
Eager is PyTorch, or NEML2's own; ``compiled`` is what ``neml2-compile`` makes of an input file, or a ``.pt2``; both
are called from Python, as is the archive; the kernel, as calls and as ``prepared`` ones, and the references are called
from C. Every way is held against
the archive's numbers first.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import platform
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import torch
from implicit import compiled as neml2_compiled  # pyright: ignore[reportAttributeAccessIssue]
from implicit import library as neml2_library  # pyright: ignore[reportAttributeAccessIssue]
from rich.console import Console
from rich.table import Table

import torchferry
from exporter.archive import kernel_container
from exporter.frontends.model_request import ModelRequest
from runtime_checks.kernels import compilation
from runtime_checks.kernels.ctypes_library import make_arrays
from runtime_checks.runners.kernel_runner import build_library

HERE = Path(__file__).with_name("by_hand")
BATCHES = (1, 10, 100, 1_000, 10_000, 100_000)
SOURCES = {
    "return_map": (f"{HERE.parents[1] / 'examples' / 'return_map.py'}:make_model", ""),
    "radial_return": (f"{HERE.parents[1] / 'examples' / 'radial_return.py'}:make_model", ""),
    "hardening": (str(HERE / "hardening.i"), "update"),
}
# References by model: column, file, function.
VECTORS = [("vectors", "by_hand_vectors"), ("tuned", "by_hand_tuned"), ("one equation", "by_hand_scalar")]
BY_HAND = {name: [("by hand", f"{name}.cpp", "by_hand")] for name in SOURCES}
BY_HAND["hardening"] += [(column, "hardening_vectors.cpp", function) for column, function in VECTORS]
HARDENING = (
    "stress",
    "equivalent_plastic_strain",
    "strain",
    "strain~1",
    "t",
    "t~1",
    "equivalent_plastic_strain~1",
    "stress~1",
)
SECONDS, ROUNDS = 0.15, 7
# Vector mathematics, which glibc has for these processors.
LIBRARIES = ["-lmvec"] if platform.machine() == "x86_64" and platform.libc_ver()[0] == "glibc" else []
F = torch.float64


def inputs(name: str, names: tuple[str, ...], rows: int) -> list[torch.Tensor]:
    """A step from rest, elastic and plastic."""
    generator = torch.Generator().manual_seed(3)
    strain = 5e-3 * (2 * torch.rand(rows, 6, generator=generator, dtype=F) - 1)
    arguments: dict[str, torch.Tensor] = {"strain": strain, "t": torch.full((rows,), 1.0, dtype=F)}
    six = {"stress", "stress~1", "strain~1", "plastic~1"}
    return [arguments.get(n, torch.zeros((rows, 6) if n in six else (rows,), dtype=F)).contiguous() for n in names]


@functools.cache
def built(source: Path, folder: Path) -> ctypes.CDLL:
    flags = [f for f in compilation.FLAGS if not f.startswith("-std")]
    result = folder / f"{source.stem}_hand.so"
    compiler = "g++" if source.suffix == ".cpp" else "gcc"
    subprocess.run(
        [compiler, *flags, compilation.NATIVE, str(source), "-o", str(result), "-lm", *LIBRARIES], check=True
    )
    return ctypes.CDLL(str(result))


def pointers(values: list[numpy.ndarray]) -> Any:
    return (ctypes.c_void_p * len(values))(*[v.ctypes.data for v in values])


def python_seconds(run: Callable[[], Any]) -> float:
    run()
    start, count = time.perf_counter(), 0
    while time.perf_counter() - start < SECONDS / 3 or count == 0:
        run()
        count += 1
    return (time.perf_counter() - start) / count


def c_seconds(run: Callable[[int], float]) -> float:
    once = run(1)
    return run(max(1, int(SECONDS / 3 / max(once, 1e-8))))


def eager_of(name: str) -> Callable[..., Any]:
    source, model = SOURCES[name]
    if model:
        return neml2_library(source, model)
    from exporter.frontends import resolve
    from exporter.model.eager.evaluation import evaluate

    request = ModelRequest(source)
    result = resolve.load(request, resolve.choose_models(request, [])[0], None)
    return lambda *arguments: evaluate(result, arguments)


def ways(name: str, folder: Path, *, compiled: bool) -> tuple[Any, dict[str, Callable[[int], Callable[[], float]]]]:
    source, model = SOURCES[name]
    path = folder / f"{name}.pt"
    examples: dict[str, Any] | None = dict(zip(HARDENING, inputs(name, HARDENING, 32), strict=True)) if model else None
    torchferry.export(source, models=[model] if model else [], output=path, inputs=examples, formats="pt,c")
    archive = torchferry.load(path)
    names = archive.contract.methods["forward"].inputs
    opened = kernel_container.read(path.with_suffix(""))
    library = ctypes.CDLL(str(build_library(opened)))
    kernel, prepare, run_prepared, call_size = (
        library[f"{opened.name}_forward{end}"] for end in ("", "_prepare", "_run", "_call_size")
    )
    call_size.restype = ctypes.c_size_t
    loop = built(HERE / "loop.c", folder)
    hands = {column: built(HERE / file, folder)[function] for column, file, function in BY_HAND[name]}
    for function in (loop.kernel_seconds, loop.prepared_seconds, loop.hand_seconds):
        function.restype = ctypes.c_double
    specs = archive.contract.outputs

    def outputs(rows: int) -> list[numpy.ndarray]:
        return [numpy.zeros((rows, *s.static_shape)) for s in specs]

    def hold(result: list[numpy.ndarray], rows: int, what: str) -> None:
        for value, wanted in zip(result, archive(*inputs(name, names, rows)), strict=True):
            close = numpy.allclose(value, wanted.numpy(), rtol=1e-6, atol=1e-6 * float(wanted.abs().max()))
            assert close, f"{name}: {what} has other numbers than the archive"

    def by_kernel(rows: int) -> Callable[[], float]:
        arguments, result = [v.numpy() for v in inputs(name, names, rows)], outputs(rows)
        arrays = make_arrays(arguments, True), make_arrays(result, True)

        def run(times: int) -> float:
            return loop.kernel_seconds(kernel, ctypes.c_long(times), ctypes.c_long(rows), *arrays)

        run(1)
        hold(result, rows, "the kernel")
        # The arrays live as long as what has their addresses.
        return lambda kept=(arguments, result): c_seconds(run)

    def by_prepared(rows: int) -> Callable[[], float]:
        arguments, result = [v.numpy() for v in inputs(name, names, rows)], outputs(rows)
        arrays = make_arrays(arguments, True), make_arrays(result, True)
        places = pointers(arguments), pointers(result)
        call = ctypes.create_string_buffer(call_size())
        if prepare(call, ctypes.c_ssize_t(rows), *arrays, None):
            raise RuntimeError("the call cannot be prepared")

        def run(times: int) -> float:
            return loop.prepared_seconds(run_prepared, ctypes.c_long(times), call, *places)

        run(1)
        hold(result, rows, "the prepared kernel")
        # The arrays live as long as what has their addresses.
        return lambda kept=(arguments, result): c_seconds(run)

    def by_hand(hand: Any, rows: int) -> Callable[[], float]:
        arguments, result = [v.numpy() for v in inputs(name, names, rows)], outputs(rows)
        places = pointers(arguments), pointers(result)

        def run(times: int) -> float:
            return loop.hand_seconds(hand, ctypes.c_long(times), ctypes.c_long(rows), *places)

        run(1)
        hold(result, rows, "the reference")
        # The arrays live as long as what has their addresses.
        return lambda kept=(arguments, result): c_seconds(run)

    def by_archive(rows: int) -> Callable[[], float]:
        arguments = inputs(name, names, rows)

        def run() -> Any:
            with torch.inference_mode():
                return archive.module.forward(*arguments)

        return lambda: python_seconds(run)

    result: dict[str, Callable[[int], Callable[[], float]]] = {
        column: functools.partial(by_hand, function) for column, function in hands.items()
    }
    result |= {"kernel": by_kernel, "prepared": by_prepared, ".pt": by_archive}
    eager = eager_of(name)
    if eager is not None:
        result["eager"] = lambda rows: _eager(eager, name, names, rows, bool(model))
    if compiled and model:
        compiled_model = neml2_compiled(source, model, [], folder / "neml2")
        result["neml2 compiled"] = lambda rows: _compiled(compiled_model, name, names, rows)
    elif compiled and name == "radial_return":
        torchferry.convert(path, folder / f"{name}.pt2", to="pt2")
        fast = torchferry.load(folder / f"{name}.pt2")
        result[".pt2"] = lambda rows: _plain(fast, inputs(name, names, rows))
    return archive, result


def _plain(run: Any, arguments: list[torch.Tensor]) -> Callable[[], float]:
    def call() -> Any:
        with torch.inference_mode():
            return run(*arguments)

    return lambda: python_seconds(call)


def _eager(run: Any, name: str, names: tuple[str, ...], rows: int, neml2: bool) -> Callable[[], float]:
    arguments = inputs(name, names, rows)
    if neml2:
        typed = {n: run.input_spec[n](v) for n, v in zip(names, arguments, strict=True)}
        return lambda: python_seconds(lambda: run(*typed.values()))
    return lambda: python_seconds(lambda: run(*arguments))


def _compiled(run: Any, name: str, names: tuple[str, ...], rows: int) -> Callable[[], float]:
    arguments = dict(zip(names, inputs(name, names, rows), strict=True))
    return lambda: python_seconds(lambda: run.forward(arguments))


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("-o", "--output", type=Path)
    asked.add_argument("--only", default="")
    asked.add_argument("--without-compiled", action="store_true")
    arguments = asked.parse_args()
    torch.set_num_threads(1)
    rows_of: dict[str, dict[str, dict[int, float]]] = {}
    for name in SOURCES:
        if arguments.only not in name:
            continue
        with tempfile.TemporaryDirectory() as folder:
            _, runs = ways(name, Path(folder), compiled=not arguments.without_compiled)
            table: dict[str, dict[int, float]] = {way: {} for way in runs}
            for batch in BATCHES:
                ready = {}
                for way, prepare in runs.items():
                    try:
                        ready[way] = prepare(batch)
                        ready[way]()
                    except (RuntimeError, IndexError, ValueError, TypeError) as error:
                        print(f"{name}, {way}, batch {batch}: {type(error).__name__}: {str(error).splitlines()[0]}")
                        ready.pop(way, None)
                times: dict[str, list[float]] = {way: [] for way in ready}
                for _ in range(ROUNDS):
                    for way, run in ready.items():
                        times[way].append(run())
                for way, result in times.items():
                    table[way][batch] = statistics.median(result) / batch * 1e6
            rows_of[name] = table
            show(name, table, BATCHES, "us")
    if arguments.output:
        plot(rows_of, arguments.output)


def show(name: str, table: dict[str, dict[int, float]], batches: tuple[int, ...], unit: str) -> None:
    shown = Table(title=f"{name}: {unit} of an element (times the kernel's)")
    for head in ("batch", *table):
        shown.add_column(head, justify="right")
    for batch in batches:
        own = table["kernel"][batch]
        cells = [f"{v[batch]:#.3g} ({v[batch] / own:.2f})" if batch in v else "-" for v in table.values()]
        shown.add_row(f"{batch:,}", *cells)
    Console(width=150).print(shown)


def plot(rows_of: dict[str, dict[str, dict[int, float]]], output: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "torchferry"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(rows_of), figsize=(4.2 * len(rows_of), 3.6), sharey=True)
    for axis, (name, table) in zip(numpy.atleast_1d(axes), rows_of.items(), strict=True):
        for way, result in table.items():
            axis.loglog(list(result), list(result.values()), marker="o", markersize=3, label=way)
        axis.set_title(name)
        axis.set_xlabel("elements of the batch")
        axis.grid(visible=True, which="both", alpha=0.2)
        axis.legend(fontsize=7)
    numpy.atleast_1d(axes)[0].set_ylabel("microseconds of an element")
    figure.tight_layout()
    figure.savefig(output, metadata={"Date": None})


if __name__ == "__main__":
    main()

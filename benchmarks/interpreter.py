"""The interpreter beside TorchScript, for the same archives in one run.

python benchmarks/interpreter.py [ARCHIVE ...]

One thread; rounds of all ways are interleaved. Microseconds a call, and the ratio to TorchScript's."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

import torchferry
from exporter.archive import pt_archive
from runtime_checks.bench.candidates import collect_rows
from runtime_checks.bench.steady_state import measure_throughput

ROOT = Path(__file__).parents[1]
DEFAULT = [ROOT / "artifacts" / f"{name}.pt" for name in ("rates", "perzyna", "robertson", "return_map")]
ENGINES = ("torchscript", "interpreter")
BATCHES = (1, 1_000, 100_000)


def measure(path: Path, table: Table) -> None:
    """Time ``forward`` of one archive by each engine at each size of batch."""
    rows = collect_rows(pt_archive.read(path).cases(), pt_archive.read(path).contract, "forward")
    calls = {engine: torchferry.load(path, engine=engine).engine.run for engine in ENGINES}
    for batch in BATCHES:
        inputs = tuple(rows.take(batch)[0])
        timings = {t.candidate: t.median / 1e3 for t in measure_throughput(calls, "forward", inputs, batch)}
        cells = [f"{timings[engine]:.0f}" for engine in ENGINES]
        table.add_row(path.stem, str(batch), *cells, f"{timings['interpreter'] / timings['torchscript']:.2f}")


def main(paths: list[Path]) -> None:
    torch.set_num_threads(1)
    table = Table("archive", "batch", *(f"{engine}, us" for engine in ENGINES), "ratio")
    for path in paths:
        measure(path, table)
    Console().print(table)


if __name__ == "__main__":
    main([Path(text) for text in sys.argv[1:]] or DEFAULT)

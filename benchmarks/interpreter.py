"""The interpreter beside TorchScript, and beside what does without TorchScript too: program, compiled code, kernel.

python benchmarks/interpreter.py [ARCHIVE ...]

One thread; rounds of all ways are interleaved in one run. Microseconds a call of ``forward``, and how many times as
long the interpreter takes as TorchScript, and as the fastest of the others."""

from __future__ import annotations

import sys
import tempfile
import warnings
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
WAYS = ("torchscript", "interpreter", "program", "pt2", "kernel")
BATCHES = (1, 1_000, 100_000)


def measure(path: Path, table: Table, folder: Path) -> None:
    """Time ``forward`` of one archive in each way at each size of batch."""
    archive = pt_archive.read(path)
    rows = collect_rows(archive.cases(), archive.contract, "forward")
    program = folder / f"{path.stem}.program.pt2"
    # What lies beside an archive runs it on tensors.
    copy = folder / path.name
    copy.write_bytes(path.read_bytes())
    for name, output in (("program", program), ("pt2", copy.with_suffix(".pt2")), ("c", copy.with_suffix(""))):
        torchferry.convert(copy, output, to=name)
    models = {way: torchferry.load(copy, engine=way) for way in WAYS if way != "program"}
    calls = {way: model.engine.run for way, model in (models | {"program": torchferry.load(program)}).items()}
    for batch in BATCHES:
        inputs = tuple(rows.take(batch)[0])
        times = {t.candidate: t.median / 1e3 for t in measure_throughput(calls, "forward", inputs, batch)}
        ratios = (times["torchscript"], min(times[way] for way in WAYS[2:]))
        cells = [f"{times[way]:.0f}" for way in WAYS] + [f"{times['interpreter'] / other:.1f}" for other in ratios]
        table.add_row(path.stem, str(batch), *cells)


def main(paths: list[Path]) -> None:
    torch.set_num_threads(1)
    # An engine that is not used would be measured as another.
    warnings.simplefilter("error", torchferry.EngineWarning)
    table = Table(
        "archive", "batch", *(f"{way}, us" for way in WAYS), "ratio to TorchScript", "ratio to the fastest other"
    )
    with tempfile.TemporaryDirectory() as folder:
        for path in paths:
            measure(path, table, Path(folder))
    Console(width=140).print(table)


if __name__ == "__main__":
    main([Path(text) for text in sys.argv[1:]] or DEFAULT)

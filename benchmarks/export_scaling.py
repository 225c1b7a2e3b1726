"""How the seconds of an export grow with the operations of a model.

python benchmarks/export_scaling.py [-o FILE.svg] [--largest 100000]

The model is a chain of elementwise operations, as an explicit integration over many steps is. Each export is a process
of its own, imports left out. The slope of the last row is that of the line through all points, both axes logarithmic.
"""

from __future__ import annotations

import argparse
import functools
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

OPERATIONS = (1_000, 3_000, 10_000, 30_000, 100_000)
STAGES = ("warmup", "soundness", "capture", "cases", "write", "verify")


class Chain(torch.nn.Module):
    """An explicit integration: four operations a step."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps = steps

    def forward(self, rate: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        for _ in range(self.steps):
            state = state + 0.01 * torch.sin(rate * state)
        return state


def make_chain(operations: int) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """Return a chain of so many operations, and inputs of it."""
    generator = torch.Generator().manual_seed(0)
    inputs = {name: torch.rand(5, 3, generator=generator, dtype=torch.float64) for name in ("rate", "state")}
    return Chain(operations // 4), inputs


make_1000, make_3000, make_10000, make_30000, make_100000 = (functools.partial(make_chain, n) for n in OPERATIONS)


def time_stages(operations: int) -> dict[str, float]:
    """Export the chain in a process of its own; return the seconds of each stage."""
    with tempfile.TemporaryDirectory() as folder:
        source = f"{Path(__file__).resolve()}:make_{operations}"
        command = [sys.executable, "-m", "exporter", "export", source, "-o", f"{folder}/chain.pt", "--json"]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise SystemExit(result.stdout[-2000:] + result.stderr[-2000:])
    return json.loads(result.stdout)[0]["seconds"]


def plot(rows: dict[int, dict[str, float]], path: Path) -> None:
    """Draw the seconds of each stage against the operations."""
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    for stage in (*STAGES, "total"):
        axes.plot(list(rows), [row[stage] for row in rows.values()], marker="o", markersize=3, label=stage)
    axes.set(xscale="log", yscale="log", xlabel="operations", ylabel="seconds")
    axes.grid(visible=True, which="major", linewidth=0.3)
    axes.legend(fontsize="small")
    figure.savefig(path)


def main() -> None:
    """Time each size, print the table, and draw it."""
    parser = argparse.ArgumentParser(description="Time exports of chains of operations.")
    parser.add_argument("-o", "--output", type=Path, help="an SVG file to draw")
    parser.add_argument("--largest", type=int, default=OPERATIONS[-1], help="leave out longer chains")
    arguments = parser.parse_args()
    rows: dict[int, dict[str, float]] = {}
    table = Table("operations", *STAGES, "total", "milliseconds an operation")
    for operations in (n for n in OPERATIONS if n <= arguments.largest):
        seconds = time_stages(operations)
        row = {stage: seconds.get(stage, 0.0) for stage in STAGES}
        rows[operations] = {**row, "total": sum(row.values())}
        total = rows[operations]["total"]
        table.add_row(
            str(operations), *(f"{s:.2f}" for s in rows[operations].values()), f"{1e3 * total / operations:.2f}"
        )
    Console().print(table)
    slope, _ = np.polyfit(np.log(list(rows)), np.log([row["total"] for row in rows.values()]), 1)
    print(f"slope {slope:.2f}")
    if arguments.output:
        plot(rows, arguments.output)


if __name__ == "__main__":
    main()
